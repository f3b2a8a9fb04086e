//! Regular files, read within a limit.
