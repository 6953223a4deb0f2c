"""Two runs' traces held against each other: what was lost, and what was done to it."""

from exact_resume.diagnosis.comparing import TELLING, Row, TraceFile, diagnose, read, sentence, told

__all__ = ["TELLING", "Row", "TraceFile", "diagnose", "read", "sentence", "told"]
