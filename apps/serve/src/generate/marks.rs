//! Marks in a text that arrives in pieces.

use candle_dynquant_decoder::Texts;

pub fn special_token(texts: &Texts, text: &str) -> Option<u32> {
    let id = texts.tokenizer.token_to_id(text)?;
    let added = texts.tokenizer.get_added_vocabulary();
    let token = added.get_added_tokens_decoder().get(&id);
    token.is_some_and(|token| token.special).then_some(id)
}

/// Takes the text before a mark out of `held`, and the mark with the space before it, which is
/// returned. Without the mark takes what is certain: what may become a mark, and space before it,
/// stays unless the text ends.
pub fn take_before(held: &mut String, mark: &str, is_end: bool) -> (String, Option<String>) {
    let found = held.find(mark);
    if is_end && found.is_none() {
        return (std::mem::take(held), None);
    }
    let begun = || {
        let mut starts = held.char_indices().map(|(at, _)| at);
        let begun = starts.find(|at| mark.starts_with(&held[*at..]));
        begun.unwrap_or(held.len())
    };
    let end = found.unwrap_or_else(begun);
    let certain = held[..end].trim_end().len();
    let mut rest = held.split_off(certain);
    let space = found.map(|_| {
        let behind = rest.split_off(end - certain + mark.len());
        rest.truncate(end - certain);
        std::mem::replace(&mut rest, behind)
    });
    (std::mem::replace(held, rest), space)
}

/// Gives a text to `push` in pieces of so many characters, and its end.
#[cfg(test)]
pub fn in_pieces(text: &str, size: usize, mut push: impl FnMut(&str, bool)) {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).for_each(|piece| push(&String::from_iter(piece), false));
    push("", true);
}
