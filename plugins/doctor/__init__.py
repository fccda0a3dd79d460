"""What is installed here, what of it works, and how to mend what doesn't.

Nothing here trusts an installation: frameworks are imported in another process, which may crash or hang.
"""
