//! Attention against the oracle, with operands that are not finite.

use super::{Pool, Random, same_bits, some};
use crate::{Attention, Heads, Isa, Precision, attention, reference};

/// The sizes of attention of one sequence, and its mask.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
    mask: Mask,
    precision: Precision,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    Causal,
    /// Some keys are excluded from all queries.
    Keys,
    /// Each query has keys that it does not see, and the first query sees none.
    Own,
}

/// Values of operands, `[rows, heads * columns]` each, and of the mask.
struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Vec<f32>,
}

impl Case {
    fn draw(&self, random: &mut Random) -> Operands {
        let mut floats = |len| (0..len).map(|_| random.float() * 3.).collect::<Vec<_>>();
        let q = floats(self.queries * self.heads * self.dim);
        let k = floats(self.keys * self.kv_heads * self.dim);
        let v = floats(self.keys * self.kv_heads * self.value_dim);
        let mut mask = match self.mask {
            Mask::None | Mask::Causal => Vec::new(),
            Mask::Keys => floats(self.keys),
            Mask::Own => floats(self.queries * self.keys),
        };
        let excluded = |i: &usize| i % 3 == 1 || self.mask == Mask::Own && *i < self.keys;
        for i in (0..mask.len()).filter(excluded) {
            mask[i] = f32::NEG_INFINITY;
        }
        Operands { q, k, v, mask }
    }

    fn operands<'a>(&self, of: &'a Operands) -> Attention<'a> {
        let heads = |values: &'a [f32], rows, heads, columns| Heads {
            values,
            strides: [values.len(), columns, heads * columns],
            rows,
            columns,
        };
        let of_mask = |stride| Heads {
            values: &of.mask[..],
            strides: [0, 0, stride],
            rows: self.queries,
            columns: self.keys,
        };
        Attention {
            q: heads(&of.q, self.queries, self.heads, self.dim),
            k: heads(&of.k, self.keys, self.kv_heads, self.dim),
            v: heads(&of.v, self.keys, self.kv_heads, self.value_dim),
            mask: match self.mask {
                Mask::None | Mask::Causal => None,
                Mask::Keys => Some(of_mask(0)),
                Mask::Own => Some(of_mask(self.keys)),
            },
            causal: self.mask == Mask::Causal,
            scale: 0.3,
            batch: 1,
            heads: self.heads,
            kv_heads: self.kv_heads,
            precision: self.precision,
        }
    }

    /// The numbers that are added to the scores of a query.
    fn mask_of(&self, of: &Operands, query: usize) -> Vec<f32> {
        let added = |key: usize| match self.mask {
            Mask::None => 0.,
            Mask::Causal if key + self.queries > query + self.keys => f32::NEG_INFINITY,
            Mask::Causal => 0.,
            Mask::Keys => of.mask[key],
            Mask::Own => of.mask[query * self.keys + key],
        };
        (0..self.keys).map(added).collect()
    }

    fn expected(&self, of: &Operands) -> Vec<f32> {
        let rows = |values: &[f32], heads: usize, columns: usize, head: usize| -> Vec<f32> {
            let rows = values.chunks(heads * columns);
            rows.flat_map(|row| row[head * columns..][..columns].to_vec())
                .collect()
        };
        let reference = match self.precision {
            Precision::Float32 => reference::attention,
            Precision::BFloat16 => reference::attention_bf16,
            Precision::Int8 => reference::attention_int8,
        };
        let mut out = Vec::new();
        for query in 0..self.queries {
            let mask = self.mask_of(of, query);
            for head in 0..self.heads {
                let q = rows(&of.q, self.heads, self.dim, head);
                let q = &q[query * self.dim..][..self.dim];
                let shared = head * self.kv_heads / self.heads;
                let k = rows(&of.k, self.kv_heads, self.dim, shared);
                let v = rows(&of.v, self.kv_heads, self.value_dim, shared);
                out.extend(reference(q, &k, &v, &mask, 0.3));
            }
        }
        out
    }
}

fn cases() -> impl Iterator<Item = Case> {
    // Heads, heads of keys, queries, keys, columns of keys and of values.
    let sizes = [
        [1, 1, 1, 1, 1, 1],
        [2, 2, 5, 7, 3, 4],
        [4, 2, 1, 40, 8, 5],
        [1, 1, 33, 33, 33, 17],
        [2, 1, 70, 200, 8, 6],
        [1, 1, 130, 131, 7, 40],
    ];
    let sizes = some(sizes, 4);
    sizes.flat_map(|[heads, kv_heads, queries, keys, dim, value_dim]| {
        let of = move |(mask, precision)| Case {
            heads,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim,
            mask,
            precision,
        };
        let masks = [Mask::None, Mask::Causal, Mask::Keys, Mask::Own];
        let precisions = [Precision::Float32, Precision::BFloat16, Precision::Int8];
        let all = masks.map(|mask| precisions.map(|precision| of((mask, precision))));
        all.into_iter().flatten()
    })
}

/// By every instruction set and on one, two and seven threads.
fn check(case: &Case, of: &Operands, pools: &[Pool], what: &str) {
    let expected = case.expected(of);
    for isa in Isa::available() {
        for (i, pool) in pools.iter().enumerate() {
            let got = pool.install(|| attention(isa, case.operands(of)));
            same_bits(
                &got,
                &expected,
                &format!("{isa}, pool {i}, {what}: {case:?}"),
            );
        }
    }
}

#[test]
fn attention_is_that_of_the_oracle() {
    let pools = [1, 2, 7].map(Pool::new);
    let mut random = Random(1);
    for case in cases() {
        check(&case, &case.draw(&mut random), &pools, "finite");
    }
}

#[test]
fn what_is_not_finite_reaches_the_queries_that_see_its_key_and_no_others() {
    let pools = [1, 2].map(Pool::new);
    let mut random = Random(2);
    // The last one is not finite in bfloat16.
    let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::MAX];
    for (index, case) in cases().enumerate() {
        let clean = case.draw(&mut random);
        let without = case.expected(&clean);
        // In k, in v, or in both; of large cases one.
        let all = poisons.into_iter().flat_map(|x| [(x, 1), (x, 2), (x, 3)]);
        let (first, step) = if case.queries * case.keys < 2_000 {
            (0, 1)
        } else {
            ((index + index / 8) % 12, 12)
        };
        for (poison, sides) in all.skip(first).step_by(step) {
            let (of_k, of_v) = (case.kv_heads * case.dim, case.kv_heads * case.value_dim);
            let key = random.below(case.keys);
            let mut of = Operands {
                q: clean.q.clone(),
                k: clean.k.clone(),
                v: clean.v.clone(),
                mask: clean.mask.clone(),
            };
            if sides != 2 {
                of.k[key * of_k..][..of_k].fill(poison);
            }
            // In v some elements, of two keys.
            for key in [key, case.keys - 1].into_iter().filter(|_| sides != 1) {
                for x in of.v[key * of_v..][..of_v].iter_mut().step_by(2) {
                    *x = poison;
                }
            }
            check(
                &case,
                &of,
                &pools,
                &format!("{poison} in key {key}, {sides}"),
            );
            let with = case.expected(&of);
            let row = case.heads * case.value_dim;
            for query in 0..case.queries {
                let mask = case.mask_of(&of, query);
                let sees = |key: usize| mask[key] > f32::NEG_INFINITY;
                if !sees(key) && !sees(case.keys - 1) {
                    let of_query = query * row..(query + 1) * row;
                    let case = format!("{poison} in key {key}, query {query}: {case:?}");
                    same_bits(&with[of_query.clone()], &without[of_query], &case);
                }
            }
        }
    }
}

/// A sum that became too small for f32 keeps its sign, which an excluded value of another one would
/// turn.
#[test]
fn an_excluded_key_leaves_no_sign() {
    const KEYS: usize = 300;
    let tiny = f32::from_bits(1);
    // One key of each chunk of 128 is seen, the second with the greatest score.
    let (mut k, mut v) = (vec![0.; KEYS], vec![-1.; KEYS]);
    let mut mask = vec![f32::NEG_INFINITY; KEYS];
    for (key, score, value) in [(0, 0., -tiny), (128, 3., -0.), (256, 0., -tiny)] {
        (k[key], v[key], mask[key]) = (score, value, 0.);
    }
    let bits = |isa, v: &[f32]| {
        let mask = Heads {
            values: &mask,
            strides: [0; 3],
            rows: 1,
            columns: KEYS,
        };
        let operands = Attention {
            mask: Some(mask),
            ..Attention::one_head([&[1.], &k, v], 1)
        };
        attention(isa, operands)[0].to_bits()
    };
    let expected = reference::attention(&[1.], &k, &v, &mask, 1.)[0].to_bits();
    let mut other = v.clone();
    other[257] = 1.;
    for isa in Isa::available() {
        assert_eq!([bits(isa, &v), bits(isa, &other)], [expected; 2], "{isa}");
    }
}
