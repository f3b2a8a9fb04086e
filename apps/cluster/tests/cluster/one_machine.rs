//! Queries without a cluster: the bits of the encoder, for any columns, files and partitions.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, DictionaryArray, LargeStringArray, StringArray, StringViewArray,
};
use datafusion::arrow::datatypes::Int32Type;
use dynquant_embed::{Encoder, Head, Input, Preset, Task};

use crate::data::{self, Bits};
use crate::process::{ok, run};

/// Each text alone, encoded directly.
fn expected(texts: &[Option<String>]) -> Bits {
    let encoder = Encoder::embedded(Preset::default()).unwrap();
    let answer = |text: &String| {
        let tokens = encoder.tokenizer.encode(Input::Text(text), None).unwrap();
        let head = Head::Embedding;
        let task = Task { tokens: &tokens, head };
        let answer = encoder.model.answer(&[task]).unwrap().concat();
        answer.iter().map(|x| x.to_bits()).collect()
    };
    let answers = texts.iter().map(|text| text.as_ref().map(answer));
    (0..).zip(answers).collect()
}

#[test]
fn embeddings_have_the_bits_of_single_texts() {
    let dir = data::folder("bits");
    let texts = data::texts(2100);
    let expected = expected(&texts);
    let output = dir.join("output.parquet");
    for (group_rows, partitions) in [(2100, "1"), (2100, "3"), (100, "2"), (64, "7")] {
        let input = dir.join("input.parquet");
        data::write(&input, &texts, group_rows);
        let report = ok(&run(&input, &output, &["--partitions", partitions]));
        assert_eq!(report["rows"], 2100);
        assert!(data::bits(&output) == expected, "{group_rows} {partitions}");
    }
}

#[test]
fn a_folder_is_one_table() {
    let dir = data::folder("a folder, 100 % *");
    let input = dir.join("in put");
    std::fs::create_dir(&input).unwrap();
    let texts = data::texts(300);
    data::write(&input.join("a*b.parquet"), &texts, 300);
    data::write(&input.join("c.parquet"), &texts, 100);
    let output = dir.join("out put.parquet");
    let sql = "SELECT DISTINCT id, embed(text) AS embedding FROM data";
    assert_eq!(ok(&run(&input, &output, &["--sql", sql]))["rows"], 300);
    assert!(data::bits(&output) == expected(&texts));
}

#[test]
fn all_types_of_texts_are_taken() {
    let dir = data::folder("types");
    let texts = data::texts(40);
    let expected = expected(&texts);
    let texts = || texts.iter().map(Option::as_deref);
    let columns: [ArrayRef; 4] = [
        Arc::new(StringArray::from_iter(texts())),
        Arc::new(LargeStringArray::from_iter(texts())),
        Arc::new(StringViewArray::from_iter(texts())),
        Arc::new(DictionaryArray::<Int32Type>::from_iter(texts())),
    ];
    let (input, output) = (dir.join("input"), dir.join("output"));
    for column in columns {
        let name = column.data_type().to_string();
        data::write_column(&input, column, 40);
        ok(&run(&input, &output, &[]));
        assert!(data::bits(&output) == expected, "{name}");
        let cast = "SELECT id, embed(arrow_cast(text, 'Utf8View')) AS embedding FROM data";
        ok(&run(&input, &output, &["--sql", cast]));
        assert!(data::bits(&output) == expected, "{name} as a view");
    }
}

#[test]
fn constants_nulls_and_classes() {
    let dir = data::folder("classes");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &data::texts(16), 16);
    let sql = "SELECT classify('Terminal text editor') AS a, classify(NULL) AS b, embed(NULL) IS NULL AS c, \
               embed('x') = embed('x') AS d, classify(text) IS NULL AS e, id FROM data ORDER BY id DESC LIMIT 3";
    ok(&run(&input, &output, &["--sql", sql]));
    let expected = "\
+---------+---+------+------+-------+----+
| a       | b | c    | d    | e     | id |
+---------+---+------+------+-------+----+
| editors |   | true | true | false | 15 |
| editors |   | true | true | false | 14 |
| editors |   | true | true | true  | 13 |
+---------+---+------+------+-------+----+";
    assert_eq!(data::rows(&output), expected);
}

#[test]
fn long_texts_are_cut_if_told_so() {
    let dir = data::folder("long");
    let (input, output) = (dir.join("input"), dir.join("output"));
    let long = "word ".repeat(100);
    data::write(&input, &[Some(long.clone()), Some("short".to_owned())], 2);
    let message = crate::process::error(&run(&input, &output, &[]));
    let expected =
        "text \"word word word word word word word word \"..: expected at most 64 tokens, got ";
    assert!(message.contains(expected), "{message}");
    assert!(message.contains("--truncate cuts texts"), "{message}");
    assert!(!output.exists());

    ok(&run(&input, &output, &["--truncate"]));
    let bits = data::bits(&output);
    assert_eq!(bits.len(), 2);
    assert!(bits.values().all(|it| it.as_ref().is_some_and(|it| it.len() == 128)));
}

/// README.md begins with `sample.parquet`; DYNQUANT_WRITE_SAMPLE=1 writes it.
#[test]
fn the_sample_has_the_texts_of_the_assets() {
    let lines = std::fs::read_to_string(Path::new(data::ASSETS).join("heldout.tsv")).unwrap();
    let texts = lines.lines().map(|line| line.split_once('\t').unwrap().1.to_owned());
    let texts: Vec<Option<String>> = texts.map(Some).collect();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample.parquet");
    if std::env::var_os("DYNQUANT_WRITE_SAMPLE").is_some() {
        data::write(&sample, &texts, 1000);
    }
    let dir = data::folder("sample");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &texts, 1000);
    ok(&run(&sample, &output, &["--sql", "SELECT * FROM data ORDER BY id"]));
    assert_eq!(data::rows(&output), data::rows(&input));
}
