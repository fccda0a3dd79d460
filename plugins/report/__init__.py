"""``partita simulate --report FILE.html``: a simulated step as one page that needs nothing beside itself.

The page has the timeline of every device, its memory over time, the plan's stages and its reasons. Pictures are SVG
inside the HTML; there is no script, no font and no style from elsewhere. The same simulation gives the same page.
"""
