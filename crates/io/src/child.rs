//! Child processes that end: within a limit, and with their parent.
