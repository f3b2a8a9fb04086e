//! The name of a model on the hub, with a revision.

use std::fmt;

use anyhow::{Context, Result};

/// The branch of a name without a revision.
const BRANCH: &str = "main";

/// `OWNER/MODEL`, or `OWNER/MODEL@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub model: String,
    pub revision: String,
}

impl Name {
    /// # Errors
    /// When the text is malformed, or could lead to another place of a folder or an address.
    pub fn parse(text: &str) -> Result<Self> {
        let (model, revision) = text.split_once('@').unwrap_or((text, BRANCH));
        let is_model = model.split('/').count() == 2 && model.split('/').all(is_plain);
        let is_revision = revision.split('/').all(is_plain);
        (is_model && is_revision)
            .then(|| Self {
                model: model.to_owned(),
                revision: if is_commit(revision) {
                    revision.to_lowercase()
                } else {
                    revision.to_owned()
                },
            })
            .with_context(|| {
                format!("expected a name such as OWNER/MODEL or OWNER/MODEL@REVISION, got {text:?}")
            })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if self.revision == BRANCH {
            return Ok(());
        }
        write!(f, "@{}", self.revision)
    }
}

/// Whether `text` has the form of a name.
pub fn is_name(text: &str) -> bool {
    Name::parse(text).is_ok()
}

/// Whether `part` is a single path component that needs no escape in an address.
pub fn is_plain(part: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty()
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && part.chars().all(is_usual)
}

/// Whether `text` is the hash of a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn a_name_leads_nowhere_else() {
        let name = Name::parse("intfloat/e5-small-v2@refs/pr/3");
        let name = name.map(|it| (it.to_string(), it.revision));
        let expected = ("intfloat/e5-small-v2@refs/pr/3", "refs/pr/3");
        assert_eq!(name.ok(), Some((expected.0.to_owned(), expected.1.to_owned())));
        for text in [
            "", "e5", "/e5", "a/", "../a", "a/..", "a/b/c", "a/b@", "a/b@../c", "a/b@c//d",
            "a b/c", "a/b?c", "a/b@-c", "./a", "a/.b", "a/b%2e", "a\\b/c", "/a/b", "ä/b",
        ] {
            assert!(Name::parse(text).is_err(), "{text:?}");
        }
    }
}
