//! Float and quantized checkpoints, on one machine and on a cluster, and machines with different
//! models.

use std::fs;
use std::path::PathBuf;

use candle_dynquant::checkpoint::quantize;
use candle_dynquant::{Checkpoint, QConfigSpec};

use crate::data::{self, ASSETS};
use crate::process::{Cluster, error, ok, run};

/// `assets/bert` in int8, written by `dynquant quantize`.
fn quantized(dir: PathBuf) -> PathBuf {
    let source = Checkpoint::open(ASSETS).unwrap();
    quantize(&source, &QConfigSpec::int8(), &dir, |_| ()).unwrap();
    dir
}

#[test]
fn float_and_quantized_checkpoints_agree() {
    let dir = data::folder("checkpoints");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &data::texts(3000), 100);
    ok(&run(&input, &output, &[]));
    let embedded = data::bits(&output);
    let quantized = quantized(dir.join("int8"));
    let quantized = quantized.to_str().unwrap();
    for model in [ASSETS, quantized] {
        ok(&run(&input, &output, &["--model", model]));
        assert!(data::bits(&output) == embedded, "{model} on one machine");

        let options = ["--model", model];
        let cluster = Cluster::start(&[&options, &options]);
        ok(&run(&input, &output, &["--model", model, "--scheduler", &cluster.url]));
        assert!(data::bits(&output) == embedded, "{model} on a cluster");
    }
    let message = error(&run(&input, &output, &["--model", quantized, "--preset", "int8"]));
    let expected = "expected float weights for the preset int8, got quantized ones";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn every_preset_has_the_same_bits_on_a_cluster() {
    let dir = data::folder("presets");
    let (input, alone, output) = (dir.join("input"), dir.join("alone"), dir.join("output"));
    data::write(&input, &data::texts(2000), 100);
    for preset in ["bfloat16", "float16", "none"] {
        let options = ["--preset", preset];
        ok(&run(&input, &alone, &options));
        let cluster = Cluster::start(&[&options, &options]);
        ok(&run(&input, &output, &["--preset", preset, "--scheduler", &cluster.url]));
        assert!(data::bits(&output) == data::bits(&alone), "{preset}");
    }
}

#[test]
fn an_executor_with_another_model_is_named() {
    let dir = data::folder("another model");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &data::texts(3000), 100);
    let mut cluster = Cluster::start(&[&[], &["--preset", "bfloat16"]]);
    let query = run(&input, &output, &["--scheduler", &cluster.url]);
    let message = error(&query);
    for expected in [
        "expected the model of the query, debian-sections (int8, hash ",
        ", got debian-sections (bfloat16, hash ",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    assert!(!output.exists());

    // Only that executor is at fault: without it the cluster computes.
    drop(cluster.executors.pop());
    ok(&query);
    assert_eq!(data::bits(&output).len(), 3000);
}

#[test]
fn queries_of_several_stages_are_the_same_on_a_cluster() {
    let dir = data::folder("stages");
    let input = dir.join("input");
    fs::create_dir(&input).unwrap();
    let texts = data::texts(3000);
    data::write(&input.join("a.parquet"), &texts[..1800], 100);
    data::write(&input.join("b.parquet"), &texts[1200..], 100);
    let cluster = Cluster::start(&[&[], &[]]);
    let (alone, output) = (dir.join("alone"), dir.join("output"));
    let sqls = [
        "SELECT classify(text) AS class, count(*) AS texts, count(DISTINCT text) AS others FROM data \
         GROUP BY class ORDER BY class NULLS FIRST",
        "SELECT id, text, embed(text) AS embedding FROM data WHERE classify(text) = 'games' ORDER BY id, text",
        "SELECT id, embed(text)[1] AS first, embed('a game')[2] AS second FROM data \
         ORDER BY embed(text)[128] DESC, id LIMIT 20",
    ];
    for sql in sqls {
        ok(&run(&input, &alone, &["--sql", sql]));
        ok(&run(&input, &output, &["--sql", sql, "--scheduler", &cluster.url]));
        assert_eq!(data::rows(&output), data::rows(&alone), "{sql}");
    }
}

#[test]
fn a_mistake_on_a_cluster_is_named() {
    let dir = data::folder("mistake on a cluster");
    let (input, output) = (dir.join("input"), dir.join("output"));
    let mut texts = data::texts(3000);
    texts[2500] = Some("word ".repeat(100));
    data::write(&input, &texts, 100);
    let cluster = Cluster::start(&[&[]]);
    let message = error(&run(&input, &output, &["--scheduler", &cluster.url]));
    let expected = "expected at most 64 tokens, got ";
    assert!(message.contains(expected), "{message}");
    assert!(!output.exists());
    ok(&run(&input, &output, &["--scheduler", &cluster.url, "--truncate"]));
    assert_eq!(data::bits(&output).len(), 3000);
}
