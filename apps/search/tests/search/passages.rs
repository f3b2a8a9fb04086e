//! How texts are cut.

use dynquant_embed::{Direction, Encoder, Input, Preset};
use dynquant_search::passages::{Passage, Splitter, key, max_tokens};

fn encoder() -> Encoder {
    Encoder::embedded(Preset::Int8).unwrap()
}

/// Checks the passages of a text, as they must be for any.
fn check(encoder: &Encoder, text: &str) -> Vec<Passage> {
    let splitter = Splitter::new(&encoder.tokenizer, "").unwrap();
    let passages = splitter.split(text).unwrap();
    let mut end = 0;
    for (passage, embedded) in &passages {
        let part = text
            .get(passage.bytes.clone())
            .expect("borders of characters");
        assert!(
            text[end..passage.bytes.start].trim().is_empty(),
            "left out: {passage:?} in {text:?}"
        );
        end = passage.bytes.end;
        let newlines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
        let line = |at: usize| newlines(&text.as_bytes()[..at]) + 1;
        assert_eq!(
            passage.first_line,
            line(passage.bytes.start),
            "{passage:?} in {text:?}"
        );
        assert_eq!(
            passage.last_line,
            line(passage.bytes.end - 1),
            "{passage:?} in {text:?}"
        );
        assert_eq!(passage.key, key(part.as_bytes()));
        assert!(!part.trim().is_empty() && part.len() <= 2048, "{passage:?}");
        assert_eq!(part, embedded, "a passage is embedded as a whole");
        let cut = Some(Direction::Right);
        let tokens = encoder.tokenizer.encode(Input::Text(part), cut);
        assert!(
            tokens.unwrap().len() <= max_tokens(&encoder.tokenizer),
            "{passage:?}"
        );
    }
    assert!(
        text[end..].trim().is_empty(),
        "left out: the end of {text:?}"
    );
    passages.into_iter().map(|(passage, _)| passage).collect()
}

#[test]
fn every_line_is_in_a_passage() {
    let fragments = [
        "a word",
        " ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t\t",
        "größer, als",
        "日本語のテキスト",
        "🦀🦀",
        "e\u{301}\u{301}",
        "antidisestablishmentarianism",
        "x+=y[0]->z;",
        "\u{0}\u{7}",
        "\u{feff}",
        "\u{3000}",
        "[SEP] [CLS]",
        "ﷺ",
        "İstanbul",
    ];
    let encoder = encoder();
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..300 {
        let mut text = String::new();
        for _ in 0..next(120) {
            let fragment = fragments[next(fragments.len())];
            // Some repeated, so that lines and words are too long for a passage.
            let times = [1, 1, 1, 1, 2, 40, 700][next(7)];
            text.push_str(&fragment.repeat(if next(8) == 0 { times } else { 1 }));
        }
        check(&encoder, &text);
    }
}

#[test]
fn texts_without_words_have_no_passages() {
    let encoder = encoder();
    for text in ["", "\n", "\r\n\r\n", " \t\n \u{3000}\n"] {
        assert!(check(&encoder, text).is_empty(), "{text:?}");
    }
    assert_eq!(check(&encoder, "a").len(), 1);
}

#[test]
fn a_line_that_is_too_long_is_cut_between_words() {
    let encoder = encoder();
    let text = format!("first\n{}\nlast\n", "some words of a line ".repeat(20_000));
    let passages = check(&encoder, &text);
    assert!(passages.len() > 1000);
    for passage in &passages[1..passages.len() - 1] {
        assert_eq!((passage.first_line, passage.last_line), (2, 2));
        let after = text[passage.bytes.end..].chars().next();
        assert_eq!(after, Some(' '), "{passage:?}");
    }
    // One token, however long it is.
    let blob = format!("{}\n", "QUJD".repeat(100_000));
    assert!(check(&encoder, &blob).len() >= 400_000 / 2048);
}

#[test]
fn passages_end_where_paragraphs_do() {
    let encoder = encoder();
    // Of 32 tokens each; 62 fit.
    let paragraph = "a b c d a b c d\n".repeat(4);
    let text = format!("{paragraph}\n{paragraph}\n{paragraph}");
    let lines = |passage: &Passage| (passage.first_line, passage.last_line);
    let lines: Vec<_> = check(&encoder, &text).iter().map(lines).collect();
    assert_eq!(lines, [(1, 4), (6, 9), (11, 14)]);
    // Without blank lines, all lines that fit.
    let lines: Vec<_> = check(&encoder, &paragraph.repeat(3))
        .iter()
        .map(|it| it.last_line)
        .collect();
    assert_eq!(lines, [7, 12]);
}
