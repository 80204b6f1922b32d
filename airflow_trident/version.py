"""The version of this package, for code that must compare it without loading anything else."""

VERSION = "0.1.0"
