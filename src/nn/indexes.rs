//! Indexes into a table, checked before anything is read.

use candle_core::{CpuStorage, IntDType, Storage, Tensor};

use crate::error::{Error, Result};

/// Indexes of one of the dtypes that candle looks up by.
#[derive(Clone, Copy)]
pub(super) enum Indexes<'a> {
    U8(&'a [u8]),
    U32(&'a [u32]),
    I64(&'a [i64]),
}

impl Indexes<'_> {
    pub fn len(self) -> usize {
        match self {
            Self::U8(indexes) => indexes.len(),
            Self::U32(indexes) => indexes.len(),
            Self::I64(indexes) => indexes.len(),
        }
    }

    pub fn get(self, i: usize) -> usize {
        match self {
            Self::U8(indexes) => indexes[i].as_usize(),
            Self::U32(indexes) => indexes[i].as_usize(),
            Self::I64(indexes) => indexes[i].as_usize(),
        }
    }

    /// That all are indexes of rows.
    pub fn check(self, rows: usize) -> Result<()> {
        fn first<I: IntDType>(indexes: &[I], rows: usize) -> Option<String> {
            // A negative index is a large one as usize.
            let wrong = indexes.iter().find(|index| index.as_usize() >= rows);
            wrong.map(|index| index.to_string())
        }
        let wrong = match self {
            Self::U8(indexes) => first(indexes, rows),
            Self::U32(indexes) => first(indexes, rows),
            Self::I64(indexes) => first(indexes, rows),
        };
        match wrong {
            None => Ok(()),
            Some(got) => Err(Error::InvalidArgument {
                what: "index",
                expected: format!("0 or more, below the {rows} rows of the table"),
                got,
            }),
        }
    }
}

/// Calls `f` with the elements of contiguous indexes on the CPU.
pub(super) fn with_indexes<R>(
    indexes: &Tensor,
    f: impl FnOnce(Indexes<'_>) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = indexes.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::UnsupportedDevice {
            op: "embedding",
            got: format!("{:?}", indexes.device().location()),
        });
    };
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    f(match storage {
        CpuStorage::U8(indexes) => Indexes::U8(&indexes[range]),
        CpuStorage::U32(indexes) => Indexes::U32(&indexes[range]),
        CpuStorage::I64(indexes) => Indexes::I64(&indexes[range]),
        _ => {
            return Err(Error::UnsupportedDType {
                op: "embedding",
                expected: "u8, u32 or i64 indexes",
                got: indexes.dtype(),
            });
        }
    })
}
