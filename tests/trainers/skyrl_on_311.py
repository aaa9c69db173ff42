"""Lets SkyRL be imported under Python 3.11, where pydantic refuses its `typing.TypedDict`."""

import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
