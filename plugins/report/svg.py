"""Elements of the page as text: numbers written short, what users named escaped, attributes quoted.

What is written is HTML and well-formed XML at once, so that any parser reads it.
"""

from __future__ import annotations

from html import escape

# Elements that have no content. Others are closed by a tag of their own: HTML takes <small/> for one that never ends.
EMPTY = {"circle", "meta", "path", "rect"}


def number(value: float) -> str:
    """A coordinate in pixels with two decimals, zeros at its end left out."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, /, *inside: str, **attributes: str | float) -> str:
    """One element. ``inside`` is markup already; of the attributes' names ``_`` becomes ``-``, one at the end goes."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
    )
    content = "".join(inside)
    return f"<{name}{pairs}/>" if name in EMPTY and not content else f"<{name}{pairs}>{content}</{name}>"


def title(text: str) -> str:
    """What is shown when the pointer rests on the element around it."""
    return f"<title>{escape(text)}</title>" if text else ""


def text(x: float, y: float, words: str, class_: str = "", hint: str = "") -> str:
    """Words that stand on the line ``y``; ``class_`` says from where ``x`` counts (``end``, ``middle``) and looks."""
    return element("text", title(hint), escape(words), x=x, y=y, **({"class": class_} if class_ else {}))


def cut(words: str, letters: int) -> str:
    """The words where they have room, their beginning with … where not."""
    return words if len(words) <= letters else words[: letters - 1].rstrip(" ,-") + "…"
