"""Critics: models that are asked about steps in words, behind the same protocol as PRMs.

A critic's format (what is asked, how the answer begins and ends, how its verdict is read) is data: a TOML file.
"""
