"""Converters: scripts that run in their own environment, because their libraries are large or conflict with others.

The Python of that environment runs the scripts, which import only packages installed there.
"""
