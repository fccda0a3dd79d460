"""Models of known sizes, each with all that is needed to train it. Nothing imports this package; plugins offer it.

A folder is a recipe: its sizes, its model, its data. How a recipe is run, trained and compared is the same for all of
them and stands here: ``recipe`` says what a folder gives, ``train`` is the script of one rank.
"""
