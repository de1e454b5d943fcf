"""What a run says: data and JSON on stdout, talk on stderr; only this knows rich.

Plain text needs no rich, so that a run without a terminal does not load it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ndtool.engine import Tick, silent
from ndtool.errors import NdtoolError, OutputError, Status, printable
from ndtool.storage import write_next

if TYPE_CHECKING:
    from ndtool.files import Entry
    from ndtool.infer import Inference
    from ndtool.jobs import Job
    from ndtool.shapes import Trace

