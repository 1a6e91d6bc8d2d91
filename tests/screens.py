"""What the page is looked at on, and what it may get to show."""

from __future__ import annotations

SCREENS = [(1280, "light"), (390, "dark")]
"""Width and scheme; what is left on a screen is looked at in the other scheme, too."""
SCHEMES = ("light", "dark")
HOSTILE = [
    "<script>window.broken = 1</script>",
    "</script><script>window.broken = 1</script>",
    "]]> <!-- <![CDATA[ --> &lt;b&gt; = 1",
    "<img src=x onerror=window.broken=1>",
    "line 1\u2028separator\u2029and \u202eright to left",
    "שלום, עולם! مرحبا 1 + 1 = 3",
    "1+" * 50_000,
]
"""Steps that must be shown as they are."""
