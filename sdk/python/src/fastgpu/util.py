"""Small things that scripts borrow."""

from muster._fastgpu.names import random_letters as random_id
from muster._fastgpu.util import now_micros

__all__ = ["now_micros", "random_id"]
