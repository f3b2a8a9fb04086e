//! The visible text of Markdown: headings, paragraphs, lists, tables and code, without the
//! targets of links, images, HTML tags, comments and front matter.

use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Whether the name of a file says that it is Markdown.
pub fn is_markdown(path: &Path) -> bool {
    let ending = path.extension().and_then(|it| it.to_str());
    ending.is_some_and(|it| it.eq_ignore_ascii_case("md") || it.eq_ignore_ascii_case("markdown"))
}

/// The text with blanks in place of all that is markup: each byte and each line stays where it is.
pub fn text(source: &str) -> String {
    let mut text: Vec<u8> = (source.bytes())
        .map(|byte| match byte {
            b'\n' | b'\r' => byte,
            _ => b' ',
        })
        .collect();
    let mut keep =
        |range: Range<usize>| text[range.clone()].copy_from_slice(source[range].as_bytes());
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS
        | Options::ENABLE_PLUSES_DELIMITED_METADATA_BLOCKS;
    // Images and front matter that are open.
    let mut hidden = 0;
    for (event, range) in Parser::new_ext(source, options).into_offset_iter() {
        match event {
            Event::Start(Tag::Image { .. } | Tag::MetadataBlock(_)) => hidden += 1,
            Event::End(TagEnd::Image | TagEnd::MetadataBlock(_)) => hidden -= 1,
            Event::Start(Tag::HtmlBlock) => between_tags(source, range).for_each(&mut keep),
            Event::Text(_) | Event::Code(_) if hidden == 0 => keep(range),
            _ => {}
        }
    }
    // Whole pieces of a text in UTF-8, and blanks.
    String::from_utf8_lossy(&text).into_owned()
}

/// The parts of HTML that are neither tags nor comments.
fn between_tags(source: &str, block: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let html = &source[block.clone()];
    let mut at = 0;
    let next = move || {
        let start = at;
        let tag = html[start..].find('<').map_or(html.len(), |it| start + it);
        let end = if html[tag..].starts_with("<!--") {
            "-->"
        } else {
            ">"
        };
        let behind = html[tag..].find(end);
        at = behind.map_or(html.len(), |it| tag + it + end.len());
        (start < html.len()).then_some(block.start + start..block.start + tag)
    };
    std::iter::from_fn(next)
}

#[cfg(test)]
mod tests {
    use super::text;

    /// The words that are left, and what must be true of any text.
    fn words(source: &str) -> String {
        let text = text(source);
        assert_eq!(text.len(), source.len());
        for (left, all) in text.bytes().zip(source.bytes()) {
            assert!(left == all || (left == b' ' && all != b'\n'), "{text:?}");
        }
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_read_stays() {
        for (source, expected) in [
            ("# A title\n\nSome *text*.\n", "A title Some text ."),
            ("```rust\nlet x = \"<b>\";\n```\n", "let x = \"<b>\";"),
            ("    indented_code(1)\n", "indented_code(1)"),
            ("| a | b |\n|---|---|\n| `c` | d |\n", "a b `c` d"),
            ("- [x] done\n- größer\n> quoted\n", "done größer quoted"),
            ("a [link](http://x.y/z \"t\") here", "a link here"),
            ("a [link][1] here\n\n[1]: http://x.y\n", "a link here"),
            (
                "<details>\n<summary>More</summary>\ninside\n</details>\n",
                "More inside",
            ),
            ("a <b>bold</b> word<br/>", "a bold word"),
            ("a < b and c > d", "a < b and c > d"),
        ] {
            assert_eq!(words(source), expected, "{source:?}");
        }
    }

    #[test]
    fn what_is_not_read_goes() {
        for source in [
            "---\ntitle: x\n---\n",
            "+++\ntitle = 1\n+++\n",
            "<!-- one\n\ntwo --> \n",
            "<!-- never closed\n",
            "[![CI](https://a/b.svg)](https://c)",
            "![a picture](ünï.png)\n",
            "[1]: http://x.y \"title\"\n",
            "***\n",
        ] {
            let left = words(source);
            assert!(
                !left.chars().any(char::is_alphanumeric),
                "{source:?}: {left}"
            );
        }
    }

    #[test]
    fn any_text_is_taken() {
        for source in [
            "",
            "\r\n",
            "<",
            "<!--",
            "![",
            "[",
            "```",
            "---",
            "\u{feff}# ü",
            "<ü",
            "&amp;",
        ] {
            words(source);
        }
    }
}
