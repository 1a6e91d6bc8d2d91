"""`python -m prism_prm` runs the command line, for launchers of modules (`accelerate launch -m prism_prm …`)."""

from __future__ import annotations

from prism_prm.cli import main

if __name__ == "__main__":
    main()
