"""The cases of each group, by their names in its table."""

import bert
import conv
import decoder
import int4
import linear
import ops
import recurrent

GROUPS = {"linear": linear, "int4": int4, "bert": bert, "conv": conv, "recurrent": recurrent, "decoder": decoder, "ops": ops}


def select(group, text=None):
    """The constructors of the cases of a group, or of those that `text` names, separated by semicolons.

    A name need not be in the table: it says all that makes its case. Raises a ValueError at one
    that does not.
    """
    module = GROUPS[group]
    names = module.ROWS if text is None else [name.strip() for name in text.split(";") if name.strip()]
    if not names:
        raise ValueError(f"expected rows separated by semicolons, each as {module.FORM}, got none")
    return [module.parse(name) for name in names]
