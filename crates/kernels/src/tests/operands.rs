//! Operands of kernels that do not fit together: the kernel panics and names the operand, in
//! every build, before it reads or writes anything.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::{bf16, f16};

use super::{PER_ROW, of};
use crate::calls::attention;
use crate::calls::attention_int8::{KeyValues, attend};
use crate::calls::float::{FloatProduct, linear_f32_into};
use crate::calls::linear::{linear, linear_each, linear_into};
use crate::calls::lookup::{for_each_row, read_channel};
use crate::calls::norm::{layer_norm, layer_norm_and_sum, softmax};
use crate::calls::pack::{pack_codes, pack_halves};
use crate::calls::quantize::Codes;
use crate::calls::recurrent::{Recurrence, Step, recur, update_state};
use crate::isa::Isa;
use crate::loops::activation::Activation;
use crate::loops::attention::{Attention, Heads, Precision, Queries};
use crate::loops::gates::Gates;
use crate::loops::norm::Norm;
use crate::loops::product::Product;
use crate::packed::Packed;
use crate::qparams::activation::DynamicConfig;
use crate::reference::Int8;

/// The message of the panic that `f` ends in.
fn refusal<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(f())));
    let panic = panic.expect_err("these operands do not fit together");
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(other) => other.downcast_ref::<&str>().expect("a message").to_string(),
    }
}

/// Checks that `f` panics and says each of the words.
#[track_caller]
fn refused<R>(words: &[&str], f: impl FnOnce() -> R) {
    let message = refusal(f);
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
}

fn isa() -> Isa {
    Isa::available().pop().expect("portable is always there")
}

fn int8(n: usize, k: usize, gates: usize) -> Packed {
    let (codes, scales, zeros) = (vec![1; n * k], vec![1.; n], vec![0; n]);
    let int8 = Int8::new(&codes, &scales, &zeros);
    pack_codes(isa(), k, gates, int8, &vec![0.; n], PER_ROW)
}

fn float16(n: usize, k: usize, gates: usize) -> Packed {
    pack_halves(isa(), k, gates, &vec![f16::ONE; n * k], &vec![0.; n])
}

fn bfloat16(n: usize, k: usize, gates: usize) -> Packed {
    pack_halves(isa(), k, gates, &vec![bf16::ONE; n * k], &vec![0.; n])
}

#[test]
fn weights_have_whole_gates() {
    for gates in [0, 4, 7] {
        let words = ["gates", "6 channels", &gates.to_string()];
        refused(&words, || int8(6, 3, gates));
        refused(&words, || float16(6, 3, gates));
    }
    assert_eq!(int8(0, 3, 4).n(), 0);
}

#[test]
fn weights_have_the_lengths_of_their_shape() {
    let pack = |codes: usize, scales: usize, zero_points: usize, k: usize| {
        let (codes, scales) = (vec![1; codes], vec![1.; scales]);
        let zero_points = vec![0; zero_points];
        let int8 = Int8::new(&codes, &scales, &zero_points);
        pack_codes(isa(), k, 1, int8, &[0.; 2], PER_ROW)
    };
    assert_eq!(pack(6, 2, 2, 3).k(), 3);
    for codes in [0, 5, 7] {
        refused(&["codes", "6", &codes.to_string()], || pack(codes, 2, 2, 3));
    }
    for wrong in [0, 1, 3] {
        refused(&["scales", &wrong.to_string()], || pack(6, wrong, 2, 3));
        refused(&["zero points", &wrong.to_string()], || pack(6, 2, wrong, 3));
    }
    for k in [1 << 63, usize::MAX] {
        refused(&["codes", "at most", &k.to_string()], || pack(0, 2, 2, k));
        refused(&["halves", "at most"], || pack_halves::<f16>(isa(), k, 1, &[], &[0.; 2]));
    }
    refused(&["halves"], || pack_halves(isa(), 3, 1, &[f16::ONE; 5], &[0.; 2]));
}

#[test]
fn a_channel_that_is_not_there_is_refused() {
    for (weight, gates) in [(int8(6, 3, 2), 2), (float16(6, 3, 1), 1), (int8(0, 3, 2), 2)] {
        let n = weight.n();
        for channel in [n, n + gates, usize::MAX] {
            let words = ["channel", &channel.to_string()];
            refused(&words, || read_channel(&weight, channel, |_| {}));
            refused(&words, || weight.scale(channel));
            refused(&words, || weight.zero_point(channel));
        }
    }
}

#[test]
fn products_at_once_have_weights_of_one_type() {
    let all = [int8(4, 8, 1), float16(4, 8, 1), bfloat16(4, 8, 1)];
    let names = ["Int8", "Float16", "BFloat16"];
    let lhs = [1.; 8];
    for (i, own) in all.iter().enumerate() {
        linear_each([of(&lhs, 1, own), of(&lhs, 1, own)]);
        let other = (i + 1) % all.len();
        refused(&[names[i], names[other]], || {
            linear_each([of(&lhs, 1, own), of(&lhs, 1, &all[other])])
        });
    }
    let (codes, scales, zeros) = ([1; 32], [1.; 4], [0; 4]);
    let reduced = DynamicConfig { reduce_range: true, ..PER_ROW };
    let reduced = pack_codes(isa(), 8, 1, Int8::new(&codes, &scales, &zeros), &[0.; 4], reduced);
    refused(&["reduce_range"], || linear_each([of(&lhs, 1, &all[0]), of(&lhs, 1, &reduced)]));
}

#[test]
fn products_have_the_lengths_of_their_shapes() {
    let (int8, float16, bfloat16) = (int8(4, 3, 1), float16(4, 3, 1), bfloat16(4, 3, 1));
    let mut codes = Codes::default();
    let huge = (usize::MAX / 3) + 1;
    for (len, m) in [(5, 2), (7, 2), (0, 1), (3, 0), (2, huge), (0, usize::MAX)] {
        let lhs = vec![1.; len];
        refusal(|| linear(Product::new(&lhs, m, &int8, Some(Activation::Relu))));
        refusal(|| linear(of(&lhs, m, &float16)));
        refusal(|| linear(of(&lhs, m, &bfloat16)));
    }
    for len in [0, 7, 9] {
        let mut out = vec![0.; len];
        for weight in [&int8, &float16, &bfloat16] {
            refused(&["out", "8", &len.to_string()], || {
                linear_into(of(&[1.; 6], 2, weight), &mut codes, &mut out);
            });
        }
    }
    // Without inputs any number of rows has an lhs of no elements.
    let empty = self::int8(4, 0, 1);
    for m in [1 << 62, usize::MAX] {
        refused(&["out", "at most"], || linear(of(&[], m, &empty)));
    }
}

#[test]
fn float_products_of_wrapped_sizes_are_refused() {
    let product = |m: usize, lhs: usize, rhs: usize, bias: usize, out: usize| {
        let (lhs, rhs, bias) = (vec![1.; lhs], vec![1.; rhs], vec![1.; bias]);
        let mut out = vec![0.; out];
        let product = FloatProduct {
            lhs: &lhs,
            m,
            rhs: &rhs,
            bias: &bias,
            activation: None,
            is_exact: false,
        };
        linear_f32_into(Isa::active().unwrap(), product, &mut out);
        out
    };
    assert_eq!(product(2, 6, 12, 4, 8), [4.; 8]);
    // m * n and m * k wrap to 4.
    refused(&["out", "at most"], || product((1 << 62) + 1, 4, 16, 4, 4));
    refused(&["out", "at most"], || product(1 << 62, 0, 16, 4, 0));
    refused(&["out"], || product(2, 6, 12, 4, 7));
    refused(&["out"], || product(0, 0, 12, 4, 1));
    refused(&["lhs"], || product(2, 5, 12, 4, 8));
    refused(&["rhs"], || product(2, 6, 13, 4, 8));
}

fn heads(values: &[f32], strides: [usize; 3], rows: usize, columns: usize) -> Heads<'_> {
    Heads::new(values, strides, [rows, columns])
}

fn queries(q: Heads<'_>, batch: usize, heads: usize, kv_heads: usize) -> Queries<'_> {
    Queries { q, mask: None, causal: false, scale: 1., batch, heads, kv_heads }
}

#[test]
fn attention_stays_within_its_slices() {
    let values = [1.; 8];
    let fine = heads(&values, [8, 4, 2], 2, 2);
    let attend = |q, k, v, mask, batch, heads| {
        let queries = Queries { mask, ..queries(q, batch, heads, heads) };
        let attention = Attention::new(queries, k, v, Precision::Float32);
        attention::attention(isa(), attention)
    };
    assert_eq!(attend(fine, fine, fine, None, 1, 2), values);

    // Each wraps to an index within the slice.
    let row = heads(&values, [0, 0, usize::MAX - 1], 2, 2);
    let head = heads(&values, [0, 1 << 63, 2], 2, 2);
    let sequence = heads(&values, [usize::MAX, 4, 2], 2, 2);
    let short = heads(&values[..7], [8, 4, 2], 2, 2);
    for wrong in [row, short] {
        refused(&["q:", "within"], || attend(wrong, fine, fine, None, 1, 2));
        refused(&["k:", "within"], || attend(fine, wrong, fine, None, 1, 2));
        refused(&["v:", "within"], || attend(fine, fine, wrong, None, 1, 2));
        refused(&["mask:", "within"], || attend(fine, fine, fine, Some(wrong), 1, 2));
    }
    let still = heads(&values, [0, 0, 2], 2, 2);
    refused(&["q:", "within"], || attend(head, still, still, None, 1, 3));
    refused(&["k:", "within"], || attend(still, sequence, still, None, 2, 1));
    // Nothing but the output is as large as that.
    let one = heads(&values, [0, 0, 0], 1, 2);
    refused(&["out", "at most"], || attend(one, one, one, None, 1 << 62, 4));

    let shared = |kv_heads| {
        let queries = Queries { causal: true, ..queries(fine, 1, 2, kv_heads) };
        let attention = Attention::new(queries, fine, fine, Precision::Float32);
        attention::attention(isa(), attention)
    };
    assert_eq!(shared(1), values);
    for wrong in [0, 3, 4] {
        refused(&["kv_heads"], || shared(wrong));
    }

    let other = heads(&values, [8, 4, 1], 2, 1);
    refused(&["head_dim"], || attend(fine, other, fine, None, 1, 2));
    refused(&["keys"], || attend(fine, fine, one, None, 1, 2));
    refused(&["mask"], || attend(fine, fine, fine, Some(other), 1, 2));
    // A matrix without elements fits anywhere, whatever its strides.
    let nothing = heads(&[], [usize::MAX; 3], 2, 0);
    assert_eq!(attend(nothing, nothing, fine, None, 1, 2), values);
    assert!(attend(fine, fine, nothing, None, 1, 2).is_empty());
}

#[test]
fn kept_codes_stay_within_their_room() {
    let values = [1.; 8];
    let one = heads(&values, [8, 4, 2], 2, 2);
    let new = |heads, dims, capacity| KeyValues::new(isa(), heads, dims, capacity);
    let two = || new([1, 2], [2, 2], 3);
    let append = |k, v| {
        let mut kept = two();
        kept.append(k, v);
        kept
    };
    assert_eq!(append(one, one).len(), 2);
    refused(&["keys", "at most 1 more", "2"], || append(one, one).append(one, one));
    let other = heads(&values, [8, 4, 1], 2, 1);
    refused(&["k:", "2 columns"], || append(other, one));
    refused(&["v:", "2 columns"], || append(one, other));
    refused(&["one number"], || append(one, heads(&values, [8, 4, 2], 1, 2)));
    let short = heads(&values[..7], [8, 4, 2], 2, 2);
    refused(&["k:", "within"], || append(short, one));
    refused(&["v:", "within"], || append(one, short));
    refused(&["keys", "65536"], || new([1, 1], [1, 1], 65_537));
    refused(&["head_dim", "65536"], || new([1, 1], [65_537, 1], 1));
    refused(&["at most"], || new([1 << 62, 4], [1, 1], 1));
    refused(&["at most"], || new([1 << 40, 1 << 10], [1 << 8, 1 << 8], 1 << 8));

    let kept = append(one, one);
    assert_eq!(attend(queries(one, 1, 2, 2), &kept), values);
    refused(&["keys and values", "1 heads", "2 of 1"], || attend(queries(one, 1, 2, 1), &kept));
    refused(&["head_dim"], || attend(queries(other, 1, 2, 2), &kept));
    refused(&["kv_heads"], || attend(queries(one, 1, 3, 2), &kept));
    assert_eq!(attend(queries(one, 1, 2, 2), &two()), [0.; 8]);
    // Keys in 8 bits of a call.
    let long = heads(&values, [0; 3], 65_537, 2);
    refused(&["keys", "65536"], || {
        let queries = queries(one, 1, 2, 1);
        attention::attention(isa(), Attention::new(queries, long, long, Precision::Int8))
    });
}

#[test]
fn steps_have_the_lengths_of_their_shapes() {
    let update = |gates, hidden, ih: usize, hh: usize, h: usize, c: usize| {
        let (mut h, mut c) = (vec![0.; h], vec![0.; c]);
        let step = Step { ih: &vec![0.; ih], hh: &vec![0.; hh], h: &mut h, c: &mut c };
        update_state(isa(), gates, hidden, step);
    };
    update(Gates::Lstm, 3, 24, 24, 6, 6);
    update(Gates::Gru, 3, 18, 18, 6, 0);
    update(Gates::Tanh, 0, 0, 0, 0, 0);
    refused(&["h,"], || update(Gates::Lstm, 3, 24, 24, 7, 6));
    refused(&["h,"], || update(Gates::Lstm, usize::MAX, 24, 24, 6, 6));
    refused(&["h,"], || update(Gates::Lstm, 0, 24, 24, 6, 6));
    refused(&["ih"], || update(Gates::Lstm, 3, 23, 24, 6, 6));
    refused(&["hh"], || update(Gates::Gru, 3, 18, 0, 6, 0));
    refused(&["c,"], || update(Gates::Lstm, 3, 24, 24, 6, 0));
    refused(&["c of"], || update(Gates::Relu, 3, 6, 6, 6, 6));
}

/// A GRU of two units and three inputs over two sequences of two steps, with operands to spoil.
struct Course {
    ih: Packed,
    hh: Packed,
    xs: usize,
    h: usize,
    hs: usize,
    cs: usize,
    steps: [std::ops::Range<usize>; 2],
}

impl Course {
    fn new(pack: fn(usize, usize, usize) -> Packed) -> Self {
        Self {
            ih: pack(6, 3, 3),
            hh: pack(6, 2, 3),
            xs: 12,
            h: 4,
            hs: 8,
            cs: 0,
            steps: [0..2, 2..4],
        }
    }

    fn run(self, run: impl Fn(&[f32], Vec<Recurrence<'_>>)) {
        let (mut h, mut hs) = (vec![0.; self.h], vec![0.; self.hs]);
        let mut cs = vec![0.; self.cs];
        let recurrence = Recurrence {
            gates: Gates::Gru,
            steps: &self.steps,
            weights: [&self.ih, &self.hh],
            h: &mut h,
            c: &mut [],
            hs: &mut hs,
            cs: &mut cs,
        };
        run(&vec![1.; self.xs], vec![recurrence]);
    }
}

#[test]
fn recurrences_have_operands_that_fit_together() {
    type Pack = fn(usize, usize, usize) -> Packed;
    let kinds: [(Pack, Pack, [&str; 2]); 3] = [
        (int8, float16, ["Int8", "Float16"]),
        (float16, int8, ["Int8", "Float16"]),
        (bfloat16, int8, ["BFloat16", "Int8"]),
    ];
    for (own, other, elements) in kinds {
        let run = |xs: &[f32], all: Vec<Recurrence<'_>>| recur(xs, all);
        let fine = || Course::new(own);
        fine().run(run);
        for xs in [0, 11, 13] {
            refused(&["xs", "12"], || Course { xs, ..fine() }.run(run));
        }
        refused(&["h and c"], || Course { h: 3, ..fine() }.run(run));
        for hs in [7, 9] {
            refused(&["hs", "8"], || Course { hs, ..fine() }.run(run));
        }
        refused(&["cs", "8"], || Course { cs: 7, ..fine() }.run(run));
        for gates in [1, 2, 6] {
            let ih = own(6, 3, gates);
            refused(&["ih", "gates"], || Course { ih, ..fine() }.run(run));
        }
        let hh = own(9, 2, 3);
        refused(&["hh", "channels"], || Course { hh, ..fine() }.run(run));
        let ih = other(6, 3, 3);
        refused(&elements, || Course { ih, ..fine() }.run(run));
        let hh = other(6, 2, 3);
        refused(&elements, || Course { hh, ..fine() }.run(run));
        let steps = [0..2, usize::MAX - 1..usize::MAX];
        refused(&["at most"], || Course { steps, ..fine() }.run(run));
    }
}

#[test]
fn rows_are_whole() {
    let norm =
        Norm { centered: true, weight: &[1.; 3], bias: None, residual_weight: None, eps: 1. };
    refused(&["xs", "[2, 3]", "7"], || layer_norm(isa(), &[1.; 7], None, norm));
    refused(&["residual"], || layer_norm(isa(), &[1.; 6], Some(&[1.; 5]), norm));
    refused(&["residual"], || layer_norm_and_sum(isa(), &[1.; 6], &[1.; 3], norm));
    refused(&["bias"], || {
        let bias = Some(&[1.; 2][..]);
        layer_norm(isa(), &[1.; 6], None, Norm { bias, ..norm })
    });
    for columns in [0, 4, usize::MAX] {
        refused(&["xs"], || softmax(isa(), &[1.; 6], columns));
        refused(&["out"], || for_each_row(&mut [0; 6], columns, |_, _| {}));
    }
    assert!(softmax(isa(), &[], 4).is_empty());
}
