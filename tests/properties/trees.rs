//! Trees of layers.

use candle_core::{DType, Device, Module, Result};
use candle_dynquant::{LayerKind, QConfigSpec, Quantizable, nn, quantize_dynamic};
use candle_nn::{VarBuilder, VarMap};
use proptest::prelude::*;

use super::cases;
use super::qconfigs::qconfig;
use super::values::{Values, bits};

fn gru() -> Result<nn::GRU> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    Ok(nn::GRU::new(3, 2, Default::default(), vb)?)
}

/// A tree of layers.
#[derive(Quantizable, Clone)]
struct Node {
    linears: Vec<nn::Linear>,
    embedding: Option<nn::Embedding>,
    rnn: Option<nn::GRU>,
    child: Option<Box<Node>>,
}

fn tree(counts: &[(usize, bool, bool)], values: Values, seed: u64) -> Result<Node> {
    let (&(linears, embedding, rnn), rest) = counts.split_first().expect("a node");
    let linear = |i: usize| Ok(nn::Linear::new(values.tensor(&[4, 3], seed + i as u64)?, None));
    Ok(Node {
        linears: (0..linears).map(linear).collect::<Result<_>>()?,
        embedding: if embedding {
            Some(nn::Embedding::new(values.tensor(&[5, 3], seed)?, 3))
        } else {
            None
        },
        rnn: rnn.then(gru).transpose()?,
        child: match rest {
            [] => None,
            rest => Some(Box::new(tree(rest, values, seed + 100)?)),
        },
    })
}

/// The weights of all linear layers, and whether each is quantized.
fn weights(node: &Node) -> Vec<(bool, Vec<u32>)> {
    let own = node.linears.iter().map(|linear| {
        let quantized = linear.projection().qweight().is_some();
        (quantized, bits(linear.weight()))
    });
    own.chain(node.child.iter().flat_map(|child| weights(child))).collect()
}

fn spec() -> impl Strategy<Value = QConfigSpec> {
    let names = ["linears.0", "child", "child.child", "embedding", "nothing"];
    let patterns = ["linears", r"child\..*", "^rnn$", "(", "x{3}"];
    let kinds = [LayerKind::Linear, LayerKind::GRU, LayerKind::Embedding];
    let preset = prop_oneof![
        Just(QConfigSpec::new()),
        Just(QConfigSpec::int8()),
        Just(QConfigSpec::float16()),
        Just(QConfigSpec::pytorch().embeddings()),
    ];
    let rule = (
        0..4usize,
        proptest::option::of(qconfig()),
        proptest::sample::select(names.to_vec()),
        proptest::sample::select(patterns.to_vec()),
        proptest::sample::select(kinds.to_vec()),
    );
    (preset, proptest::collection::vec(rule, 0..4)).prop_map(|(preset, rules)| {
        rules.into_iter().fold(preset, |spec, (which, qconfig, name, pattern, kind)| match which {
            0 => spec.name(name, qconfig),
            1 => spec.regex(pattern, qconfig),
            2 => spec.kind(kind, qconfig),
            _ => spec.min_params(12),
        })
    })
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_tree_is_quantized_as_its_report_says_or_stays_as_it_was(
        counts in proptest::collection::vec((0..3usize, any::<bool>(), any::<bool>()), 1..4),
        (values, spec, seed) in (Values::any(), spec(), 0..1u64 << 60),
    ) {
        let mut model = tree(&counts, values, seed)?;
        let before = weights(&model);
        match quantize_dynamic(&mut model, &spec) {
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                prop_assert_eq!(weights(&model), before);
            }
            Ok(report) => {
                prop_assert!(!report.to_string().is_empty());
                for ((quantized, got), (_, float)) in weights(&model).into_iter().zip(before) {
                    prop_assert!(quantized || got == float);
                }
                prop_assert!(report.bytes_after() <= report.bytes_before() + 1_000_000);
                model.linears.iter().try_for_each(|linear| {
                    linear.forward(&Values::Ordinary.tensor(&[2, 3], seed)?).map(drop)
                })?;
            }
        }
    }
}
