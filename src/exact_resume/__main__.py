"""`python -m exact_resume` is the command exact-resume."""

from exact_resume.cli import main

main()
