//! Trees made of containers: Option, Vec, arrays, tuples, Box, Arc, maps.
