"""The façade of older versions: the package itself."""

from . import *  # noqa: F403
from . import __all__ as __all__
