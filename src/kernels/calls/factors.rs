//! k and v of attention as factors in bfloat16, made once for all blocks of queries.

use crate::kernels::arch::op::Op;
use crate::kernels::isa::{Isa, Pairs};
use crate::kernels::loops::attention::{Attention, Heads};
use crate::kernels::loops::factors;
use crate::kernels::loops::number::Number;
use crate::kernels::threads::Threads;
use crate::sizes;

/// k or v of all heads.
pub struct Factors {
    values: Vec<f32>,
    heads: usize,
    /// Of a head.
    rows: usize,
    columns: usize,
}

/// How a matrix becomes factors.
#[derive(Clone, Copy)]
enum Way {
    /// Element by element.
    Round,
    /// In pairs of neighbours.
    PairColumns,
    /// In pairs of rows.
    PairRows,
}

impl Factors {
    /// k and v, on several threads if there are some.
    pub fn of(isa: Isa, attention: &Attention<'_>, threads: Option<&Threads>) -> [Self; 2] {
        let ways = match isa.registers().pairs {
            Pairs::Adjacent => [Way::Round, Way::Round],
            Pairs::Alternate => [Way::PairColumns, Way::PairRows],
        };
        let [of_k, of_v] = ways;
        [(attention.k, of_k), (attention.v, of_v)].map(|(matrices, way)| {
            let [rows, columns] = match way {
                Way::Round => [matrices.rows, matrices.columns],
                Way::PairColumns => [matrices.rows, matrices.columns.div_ceil(2)],
                Way::PairRows => [matrices.rows.div_ceil(2), matrices.columns],
            };
            let (batch, heads) = (attention.batch, attention.kv_heads);
            let len = sizes::length("factors", &[batch, heads, rows, columns]);
            let mut values = vec![0.; len];
            let make = |(index, out): (usize, &mut [f32])| {
                let [of_batch, of_head, stride] = matrices.strides;
                let first = index / heads * of_batch + index % heads * of_head;
                isa.run(MakeFactors {
                    from: &matrices.values[first..],
                    stride,
                    size: [matrices.rows, matrices.columns],
                    way,
                    out,
                });
            };
            let outs = values.chunks_mut((rows * columns).max(1)).enumerate();
            match threads {
                Some(threads) => threads.for_each_item(outs, make),
                None => outs.for_each(make),
            }
            Self {
                values,
                heads,
                rows,
                columns,
            }
        })
    }

    /// The factors where attention expects k or v.
    pub fn heads(&self) -> Heads<'_> {
        let of_head = self.rows * self.columns;
        Heads {
            values: &self.values,
            strides: [self.heads * of_head, of_head, self.columns],
            rows: self.rows,
            columns: self.columns,
        }
    }
}

struct MakeFactors<'a> {
    from: &'a [f32],
    stride: usize,
    size: [usize; 2],
    way: Way,
    out: &'a mut [f32],
}

impl Op for MakeFactors<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        let (from, columns) = ((self.from, self.stride), self.size[1]);
        match self.way {
            Way::Round => factors::round_rows(from, columns, self.out),
            Way::PairColumns => factors::pair_columns(from, columns, self.out),
            Way::PairRows => factors::pair_rows(from, self.size, self.out),
        }
    }
}
