//! Text for a terminal or a pipe, which may be closed.
