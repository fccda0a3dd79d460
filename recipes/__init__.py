"""Models of known sizes, each with all that is needed to train it. Nothing imports this package; plugins offer it."""
