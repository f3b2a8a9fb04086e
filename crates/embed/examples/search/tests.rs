use std::fs;

use super::*;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");

fn arguments(query: &str, files: &[&PathBuf]) -> Arguments {
    let (query, files) = (query.to_owned(), files.iter().map(|it| it.to_path_buf()).collect());
    let model = ModelOptions { model: Some(MODEL.into()), ..ModelOptions::default() };
    Arguments { query, files, model, json: true }
}

#[test]
fn the_nearest_passages_have_file_line_and_score() -> Result<()> {
    let river = "the river runs to the harbour";
    let guide = "a small market sells apple and bread\n".repeat(50);
    let snow = "snow falls in winter\n".repeat(40);
    let guide = format!("# Title\n\n{guide}\n# E0277\n{snow}");
    let texts = [
        ("plain.txt", format!("\r\n\r\n{river}\r\n")),
        ("guide.md", guide.clone()),
        ("code.rs", "fn old_city() {}\n\n\nfn winter() {}\n".to_owned()),
    ];
    let embedder = arguments("", &[]).model.embedder()?;
    let mut passages = Vec::new();
    for (file, text) in &texts {
        passages.extend(passages::cut(embedder.encoder(), file, text)?);
    }
    // A name is found by its word, in part and in any case; a passage ends at a paragraph.
    for (query, place) in
        [(river, ("plain.txt", 3, 3)), ("e0277", ("guide.md", 54, 84)), ("OLD", ("code.rs", 1, 4))]
    {
        let hits = nearest(&embedder, query, &passages)?;
        assert!(hits.is_sorted_by(|a, b| a.score >= b.score), "{query}");
        let best = hits.iter().max_by(|a, b| a.bm25.total_cmp(&b.bm25));
        let best = best.context(query)?.passage;
        assert_eq!((&*best.file, best.first_line, best.last_line), place);
    }
    // An identical text is also the nearest by meaning.
    let hits = nearest(&embedder, river, &passages)?;
    assert_eq!(hits[0].passage.text, river);
    assert!(hits[1..].iter().all(|hit| hit.cosine < hits[0].cosine));
    let of_guide = passages.iter().filter(|it| it.file == "guide.md");
    let words = of_guide.flat_map(|it| it.text.split_whitespace());
    assert!(words.eq(guide.split_whitespace()), "every word is in one passage");
    Ok(())
}

#[test]
fn mistakes_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [none, binary, blank] = ["none", "binary", "blank"].map(|it| folder.path().join(it));
    fs::write(&binary, [0xff, 0])?;
    fs::write(&blank, "\n")?;
    let message = |arguments| run(&arguments).err().map(|error| format!("{error:#}"));
    let cases = [
        (arguments(" ", &[&blank]), "the query: it has no words"),
        (arguments(&"snow ".repeat(999), &[&blank]), "the query: expected "),
        (arguments("snow", &[&none]), "none: "),
        (arguments("snow", &[&blank, &binary]), "binary: "),
    ];
    for (arguments, expected) in cases {
        let message = message(arguments).unwrap_or_default();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(message(arguments("snow", &[&blank])), None);
    Ok(())
}
