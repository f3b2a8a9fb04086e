//! The matrices of heads, and queries, checked.

use crate::loops::attention::{Heads, PAGE, Queries, Values};

impl<T> Heads<'_, T> {
    /// Checks that all matrices are within `values`, those of pages within each page; matrices
    /// without elements lie nowhere.
    ///
    /// # Panics
    /// If a matrix exceeds `values`.
    pub(super) fn checked(self, what: &str, batch: usize, heads: usize) -> Self {
        let sizes = [batch, heads, self.rows, self.columns];
        if sizes.contains(&0) {
            return Self { values: Values::Whole(&[]), strides: [0; 3], ..self };
        }
        let (len, rows) = match self.values {
            Values::Whole(values) => (values.len(), self.rows),
            Values::Pages(pages) => {
                let count = self.rows.div_ceil(PAGE);
                assert!(
                    pages.len() >= count,
                    "{what}: expected {count} pages, got {}",
                    pages.len()
                );
                let lengths = pages[..count].iter().map(|page| page.len());
                (lengths.min().unwrap_or_default(), self.rows.min(PAGE))
            }
        };
        let sizes = [batch, heads, rows, self.columns];
        let ends = sizes.into_iter().zip(self.strides.into_iter().chain([1]));
        let last = ends
            .map(|(size, stride)| (size - 1).checked_mul(stride))
            .try_fold(0usize, |sum, offset| sum.checked_add(offset?));
        assert!(
            last.is_some_and(|last| last < len),
            "{what}: expected {sizes:?} at strides {:?} within {len} elements",
            self.strides,
        );
        self
    }
}

impl<'a> Heads<'a> {
    /// Whether sequences follow each other as their heads do, so that both can be counted as one.
    pub(super) fn follow(&self, batch: usize, heads: usize) -> bool {
        let [of_batch, of_head, _] = self.strides;
        batch == 1 || of_head.checked_mul(heads) == Some(of_batch)
    }
}

impl<'a> Queries<'a> {
    /// Checks the queries beside keys and returns them.
    ///
    /// # Panics
    /// If the sizes of the operands do not agree, or one exceeds its slice.
    pub(super) fn checked(self, keys: usize, head_dim: usize) -> Self {
        let Self { q, batch, heads, .. } = self;
        assert!(q.columns == head_dim, "q and k: expected one head_dim");
        assert!(
            heads.checked_rem(self.kv_heads).unwrap_or(heads) == 0,
            "kv_heads: expected a divisor of heads"
        );
        let scores = (q.rows, keys);
        assert!(
            self.mask.is_none_or(|mask| (mask.rows, mask.columns) == scores),
            "mask: expected {scores:?}, the sizes of the scores"
        );
        Self {
            q: q.checked("q", batch, heads),
            mask: self.mask.map(|mask| mask.checked("mask", batch, heads)),
            ..self
        }
    }

    /// Multiply-adds of both products.
    pub(super) fn multiply_adds(&self, keys: usize, value_dim: usize) -> usize {
        let columns = self.q.columns.saturating_add(value_dim);
        let sizes = [self.heads, self.q.rows, keys, columns];
        sizes.into_iter().fold(self.batch, usize::saturating_mul)
    }

    /// Single queries of heads that share k and v, as the queries of one head: keys are read once.
    ///
    /// `[batch * kv_heads, group, 1, value_dim]` has the layout of `[batch, 1, heads, value_dim]`.
    pub(super) fn grouped(self) -> Self {
        let group = self.heads.checked_div(self.kv_heads).unwrap_or(1);
        if self.q.rows != 1 || group == 1 {
            return self;
        }
        let mut all = std::iter::once(self.q).chain(self.mask);
        if !all.all(|of| of.follow(self.batch, self.heads)) {
            return self;
        }
        let queries = |heads: Heads<'a>| Heads {
            strides: [group * heads.strides[1], 0, heads.strides[1]],
            rows: group,
            ..heads
        };
        Self {
            q: queries(self.q),
            mask: self.mask.map(queries),
            // A single query is the last one, and sees all keys.
            causal: false,
            batch: self.batch * self.kv_heads,
            heads: 1,
            kv_heads: 1,
            ..self
        }
    }
}
