"""`python -m prism_prm.cli`, for launchers that start modules: `accelerate launch -m prism_prm.cli score …`."""

from __future__ import annotations

from prism_prm.cli import main

main()
