//! Attention against the oracle, with operands that are not finite.

use super::{Pool, Random, same_bits, some};
use crate::{
    Attention, Heads, Isa, KeyValues, PAGE, Precision, Queries, Values, attend, attention,
    attention_to_bf16, reference,
};

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
        let heads = |values: &'a [f32], rows, heads, columns| {
            let strides = [values.len(), columns, heads * columns];
            Heads::new(values, strides, [rows, columns])
        };
        let scores = [self.queries, self.keys];
        let of_mask = |stride| Heads::new(&of.mask, [0, 0, stride], scores);
        let queries = Queries {
            q: heads(&of.q, self.queries, self.heads, self.dim),
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
        };
        let k = heads(&of.k, self.keys, self.kv_heads, self.dim);
        let v = heads(&of.v, self.keys, self.kv_heads, self.value_dim);
        Attention::new(queries, k, v, self.precision)
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
            rows.flat_map(|row| row[head * columns..][..columns].to_vec()).collect()
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
        [1, 1, 9, 9, 8, 9],
        [4, 2, 1, 40, 8, 5],
        [1, 1, 33, 33, 33, 17],
        [2, 1, 70, 200, 8, 6],
        [1, 1, 130, 131, 7, 40],
        [1, 1, 3, 300, 20, 64],
        [3, 3, 2, 129, 64, 16],
        [2, 1, 2, 130, 9, 70],
    ];
    let sizes = some(sizes, &[2]);
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
            same_bits(&got, &expected, &format!("{isa}, pool {i}, {what}: {case:?}"));
        }
    }
}

#[test]
fn attention_is_that_of_the_oracle() {
    let pools: Vec<_> = some([1, 2, 7], &[1]).map(Pool::new).collect();
    let mut random = Random(1);
    // Under Miri: each mask, and each precision.
    for case in some(cases(), &[0, 4, 6, 8, 9]) {
        check(&case, &case.draw(&mut random), &pools, "finite");
    }
}

#[test]
fn what_is_not_finite_reaches_the_queries_that_see_its_key_and_no_others() {
    let pools: Vec<_> = some([1, 2], &[1]).map(Pool::new).collect();
    let mut random = Random(2);
    // The last one is not finite in bfloat16.
    let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::MAX];
    // Under Miri: no mask in f32, causal in bfloat16, and a mask for each query in 8 bits.
    for (index, case) in some(cases().enumerate(), &[0, 4, 11]) {
        let clean = case.draw(&mut random);
        let without = case.expected(&clean);
        // In k, in v, or in both; of large cases one.
        let all = poisons.into_iter().flat_map(|x| [(x, 1), (x, 2), (x, 3)]);
        let (first, step) = if case.queries * case.keys < 2_000 && !cfg!(miri) {
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
            check(&case, &of, &pools, &format!("{poison} in key {key}, {sides}"));
            let with = case.expected(&of);
            if case.precision == Precision::Int8 && !poison.is_finite() {
                let precision = Precision::Float32;
                let float = Case { precision, ..case }.expected(&of);
                let mut both = float.iter().zip(&with);
                assert!(
                    both.all(|(float, got)| float.is_finite() || got.is_nan()),
                    "{poison} in key {key}: {case:?}"
                );
            }
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
        let mask = Heads::new(&mask, [0; 3], [1, KEYS]);
        let mut operands = Attention::one_head([&[1.], &k, v], 1);
        operands.queries.mask = Some(mask);
        attention(isa, operands)[0].to_bits()
    };
    let expected = reference::attention(&[1.], &k, &v, &mask, 1.)[0].to_bits();
    let mut other = v.clone();
    other[257] = 1.;
    for isa in Isa::available() {
        assert_eq!([bits(isa, &v), bits(isa, &other)], [expected; 2], "{isa}");
    }
}

/// One head of queries, keys and values of `dim` columns in 8 bits.
fn int8<'a>(qkv: [&'a [f32]; 3], dim: usize, mask: Option<&'a [f32]>) -> Attention<'a> {
    let mut one = Attention::one_head(qkv, dim);
    let scores = [one.queries.q.rows, one.k.rows];
    one.queries.mask = mask.map(|values| Heads::new(values, [0; 3], scores));
    one.queries.scale = 0.3;
    one.precision = Precision::Int8;
    one
}

#[test]
fn codes_that_are_kept_give_what_those_of_a_call_give() {
    let mut random = Random(3);
    let cases = some(cases(), &[11]).filter(|case| case.precision == Precision::Int8);
    for case in cases {
        let of = case.draw(&mut random);
        let operands = case.operands(&of);
        let expected = case.expected(&of);
        let append = |kept: &mut KeyValues, first, rows| {
            kept.append(rows_from(operands.k, first, rows), rows_from(operands.v, first, rows));
        };
        for isa in Isa::available() {
            let rooms = [(0, [1, 2, 200]), (1, [5, 64, 1]), (77, [130, 3, 3])];
            for (room, steps) in some(rooms, &[1]) {
                let dims = [case.dim, case.value_dim];
                let mut kept = KeyValues::new(isa, [1, case.kv_heads], dims, case.keys + room);
                for step in steps.into_iter().cycle() {
                    let first = kept.len();
                    let rows = step.min(case.keys - first);
                    append(&mut kept, first, rows);
                    if kept.len() == case.keys {
                        break;
                    }
                }
                let got = attend(operands.queries, &kept);
                same_bits(&got, &expected, &format!("{isa}, room {room}: {case:?}"));
                // Other rows behind the first ones, and others in more and in less room.
                let first = case.keys / 3;
                kept.truncate(first);
                let noise = Heads { rows: case.keys - first, ..operands.k };
                kept.append(noise, rows_from(operands.v, 0, case.keys - first));
                kept.truncate(first);
                for capacity in [case.keys, case.keys + 130, case.keys + 3] {
                    let mut kept = kept.with_capacity(capacity);
                    assert_eq!((kept.len(), kept.capacity()), (first, capacity));
                    let rows = case.keys - first;
                    append(&mut kept, first, rows);
                    let got = attend(operands.queries, &kept.clone());
                    same_bits(&got, &expected, &format!("{isa}, {capacity}: {case:?}"));
                }
            }
        }
    }
}

#[test]
fn keys_and_values_in_bfloat16_give_what_their_floats_give() {
    let case = Case {
        heads: 4,
        kv_heads: 2,
        queries: 5,
        keys: if cfg!(miri) { 20 } else { 150 },
        dim: if cfg!(miri) { 3 } else { 33 },
        value_dim: if cfg!(miri) { 2 } else { 18 },
        mask: Mask::None,
        precision: Precision::BFloat16,
    };
    let mut random = Random(9);
    let masks = [
        (Mask::None, 1),
        (Mask::Causal, if cfg!(miri) { 36 } else { 70 }),
        (Mask::Own, 5),
        (Mask::Keys, 300),
    ];
    // Under Miri: one query, and blocks of queries on several threads.
    for (mask, queries) in some(masks, &[0, 1]) {
        let case = Case { mask, queries, ..case };
        let of = case.draw(&mut random);
        let operands = case.operands(&of);
        let halves = [&of.k, &of.v].map(|values| {
            let values = values.iter().map(|x| half::bf16::from_f32(*x));
            values.collect::<Vec<_>>()
        });
        let [k, v] = [(&halves[0], operands.k), (&halves[1], operands.v)]
            .map(|(values, of)| Heads::new(values, of.strides, [of.rows, of.columns]));
        for isa in Isa::available() {
            let expected = attention(isa, operands);
            let got = attention_to_bf16(isa, operands.queries, k, v);
            same_bits(&got, &expected, &format!("{isa}: {case:?}"));
        }
    }
}

/// The rows of heads in pages, and NaN behind the last.
fn pages<T: Copy>(heads: Heads<'_, T>, count: usize, nan: T) -> Vec<Vec<T>> {
    let page = |first: usize| {
        let row = |head: usize, row: usize| match heads.rows - first {
            left if row < left => heads.rows_from(0, head, first + row)[..heads.columns].to_vec(),
            _ => vec![nan; heads.columns],
        };
        let rows = (0..count).flat_map(|head| (0..PAGE).map(move |i| (head, i)));
        rows.flat_map(|(head, i)| row(head, i)).collect()
    };
    (0..heads.rows).step_by(PAGE).map(page).collect()
}

fn paged<'a, T>(pages: &'a [&'a [T]], heads: Heads<'a, T>) -> Heads<'a, T> {
    let of_head = PAGE * heads.columns;
    Heads { values: Values::Pages(pages), strides: [0, of_head, heads.columns], ..heads }
}

#[test]
fn pages_of_keys_and_values_change_no_bit() {
    let mut random = Random(11);
    let masks = [Mask::None, Mask::Causal, Mask::Own];
    let sizes = [(1, 300), (3, PAGE), (70, 2 * PAGE + 1)];
    let cases = masks.into_iter().flat_map(|mask| sizes.map(|size| (mask, size)));
    for (mask, (queries, keys)) in some(cases, &[3]) {
        let case = Case {
            heads: 4,
            kv_heads: 2,
            queries: if cfg!(miri) { 1 } else { queries },
            keys,
            dim: if cfg!(miri) { 3 } else { 33 },
            value_dim: if cfg!(miri) { 2 } else { 32 },
            mask,
            precision: Precision::Float32,
        };
        let of = case.draw(&mut random);
        let whole = case.operands(&of);
        let [k, v] = [whole.k, whole.v].map(|heads| pages(heads, case.kv_heads, f32::NAN));
        let [k, v] = [&k, &v].map(|pages| pages.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let halves = [&of.k, &of.v].map(|values| {
            let values = values.iter().map(|x| half::bf16::from_f32(*x));
            values.collect::<Vec<_>>()
        });
        let halves = [(&halves[0], whole.k), (&halves[1], whole.v)]
            .map(|(values, of)| Heads::new(values, of.strides, [of.rows, of.columns]));
        let halved = halves.map(|heads| pages(heads, case.kv_heads, half::bf16::NAN));
        let halved =
            halved.each_ref().map(|pages| pages.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for isa in Isa::available() {
            for precision in [Precision::Float32, Precision::BFloat16, Precision::Int8] {
                let whole = Attention { precision, ..whole };
                let in_pages = Attention { k: paged(&k, whole.k), v: paged(&v, whole.v), ..whole };
                let expected = attention(isa, whole);
                let case = format!("{isa}: {precision:?} {case:?}");
                same_bits(&attention(isa, in_pages), &expected, &case);
                if precision == Precision::BFloat16 {
                    let [k, v] = [(&halved[0], halves[0]), (&halved[1], halves[1])]
                        .map(|(pages, heads)| paged(pages, heads));
                    let got = attention_to_bf16(isa, whole.queries, k, v);
                    same_bits(&got, &expected, &case);
                }
            }
        }
    }
}

/// Some rows of heads.
fn rows_from(of: Heads<'_>, first: usize, rows: usize) -> Heads<'_> {
    let values = Values::Whole(of.rows_from(0, 0, first));
    Heads { values, rows, ..of }
}

#[test]
fn keys_that_are_excluded_change_no_bit_in_8_bits() {
    let (dim, keys) = (9, if cfg!(miri) { 9 } else { 70 });
    let mut random = Random(4);
    let mut floats = |len| (0..len).map(|_| random.float()).collect::<Vec<f32>>();
    let (q, k, v) = (floats(5 * dim), floats(keys * dim), floats(keys * dim));
    let mask = floats(keys);
    // The others come between and behind; their keys and values are greater, and not finite.
    let (mut more_k, mut more_v, mut more_mask) = (Vec::new(), Vec::new(), Vec::new());
    for (key, add) in mask.iter().enumerate() {
        let row = key * dim..(key + 1) * dim;
        more_k.extend_from_slice(&k[row.clone()]);
        more_v.extend_from_slice(&v[row]);
        more_mask.push(*add);
        for other in 0..key % 4 {
            let poison = [1e9, f32::NAN, f32::INFINITY][other];
            more_k.extend(vec![poison; dim]);
            more_v.extend(vec![-poison; dim]);
            more_mask.push(f32::NEG_INFINITY);
        }
    }
    for isa in Isa::available() {
        let alone = attention(isa, int8([&q, &k, &v], dim, Some(&mask)));
        let among = attention(isa, int8([&q, &more_k, &more_v], dim, Some(&more_mask)));
        same_bits(&among, &alone, &format!("{isa}"));
    }
}

/// The greatest code times the greatest code of as many keys as there may be.
#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn sums_of_all_keys_that_there_may_be_are_exact() {
    let (k, v) = (vec![1.; crate::MAX_TERMS], vec![2.; crate::MAX_TERMS]);
    for isa in Isa::available() {
        let got = attention(isa, int8([&[1.], &k, &v], 1, None));
        let expected = reference::attention_int8(&[1.], &k, &v, &vec![0.; k.len()], 0.3);
        same_bits(&got, &expected, &format!("{isa}"));
        assert!((got[0] - 2.).abs() < 1e-6, "{isa}: {got:?}");
    }
    // More than one part of the sum of exponentials, which differ.
    let mut random = Random(5);
    let mut floats = |len| (0..len).map(|_| random.float() * 9.).collect::<Vec<f32>>();
    let (q, k, v) = (floats(3 * 2), floats(5000 * 2), floats(5000 * 2));
    for isa in Isa::available() {
        let got = attention(isa, int8([&q, &k, &v], 2, None));
        let of = |q: &[f32]| reference::attention_int8(q, &k, &v, &[0.; 5000], 0.3);
        let expected: Vec<_> = q.chunks(2).flat_map(of).collect();
        same_bits(&got, &expected, &format!("{isa}"));
    }
}

/// Hard cases for 8 bits, with their results: a change is noticed.
#[test]
#[cfg_attr(miri, ignore = "as others, but for sizes that take minutes")]
fn hard_cases_of_8_bits_have_stated_results() {
    let attend = |qkv: [&[f32]; 3], dim, mask: Option<&[f32]>, precision| {
        let attention = |isa| attention(isa, Attention { precision, ..int8(qkv, dim, mask) });
        let mut all = Isa::available().into_iter().map(attention);
        let first = all.next().expect("portable");
        assert!(all.all(|other| other == first));
        first
    };
    let close =
        |a: &[f32], b: &[f32], bound: f32| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= bound);
    let (dim, keys) = (4, 600);
    let q = [0.5, -0.25, 1., 0.];
    let mut random = Random(6);
    let v = random.floats(keys * dim);

    // Equal keys: the mean of the values, within half a step of theirs and of the weights.
    let equal = [0.3, 0.1, -0.9, 0.7].repeat(keys);
    let [float, got] = [Precision::Float32, Precision::Int8]
        .map(|precision| attend([&q, &equal, &v], dim, None, precision));
    assert!(close(&got, &float, 1. / 254.), "{got:?}, expected {float:?}");

    // One huge key takes all the weight: its value, within half a step.
    let mut huge = equal.clone();
    huge[7 * dim..][..dim].copy_from_slice(&[300., -100., 900., 5.]);
    let got = attend([&q, &huge, &v], dim, None, Precision::Int8);
    let value = &v[7 * dim..][..dim];
    assert!(close(&got, value, 1. / 254.), "{got:?}, expected {value:?}");

    // The scale of a key is its own: a huge one that is excluded changes nothing, as above; a huge
    // element of a key leaves few bits for the others of this key, and for no other key.
    let mut one = equal.clone();
    one[7 * dim + 3] = 1000.;
    let [float, got] = [Precision::Float32, Precision::Int8]
        .map(|precision| attend([&q, &one, &v], dim, None, precision));
    assert!(close(&got, &float, 1. / 127.), "{got:?}, expected {float:?}");

    // Weights below 1/510 of the greatest are lost, though 599 of them are half of the sum: the
    // result is the greatest's alone, times its part.
    let sink = vec![0.; keys * dim];
    let mut mask = vec![-(1200f32.ln()); keys];
    mask[0] = 0.;
    let ones = vec![1.; keys * dim];
    let got = attend([&q, &sink, &ones], dim, Some(&mask), Precision::Int8);
    assert!(close(&got, &[1. / (1. + 599. / 1200.); 4], 5e-4), "{got:?}");

    // No key, and values of zeros.
    let none = vec![f32::NEG_INFINITY; keys];
    let got = attend([&[f32::NAN; 4], &equal, &v], dim, Some(&none), Precision::Int8);
    assert_eq!(got, [0.; 4]);
    assert_eq!(attend([&q, &equal, &sink], dim, None, Precision::Int8), [0.; 4]);
    // Small rows keep their bits down to 2^-111.
    let small: Vec<f32> = v.iter().map(|x| x * 2f32.powi(-105)).collect();
    let [at_one, at_small] =
        [&v, &small].map(|v| attend([&q, &equal, v], dim, None, Precision::Int8));
    let scaled: Vec<f32> = at_small.iter().map(|x| x * 2f32.powi(105)).collect();
    assert!(close(&scaled, &at_one, 1e-6), "{scaled:?}, expected {at_one:?}");
}
