"""A plan in the words of other frameworks: their files, for people who start their training themselves.

Here a plan is written down, not run: nothing imports a framework. What one can't say is refused with the reason, and
what it leaves to the user's script is listed beside the files.
"""
