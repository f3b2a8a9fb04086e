//! Files and folders that are replaced whole.
