"""Small things that scripts borrow."""

from muster._fastgpu.names import random_letters as random_id
from muster._fastgpu.util import assert_script_in_current_directory, now_micros

__all__ = ["assert_script_in_current_directory", "now_micros", "random_id"]
