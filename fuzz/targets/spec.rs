//! A text as a spec: it is read, or refused with a short message; a spec that was read can be
//! written.

use candle_dynquant::QConfigSpec;

use crate::refusal;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for read in [QConfigSpec::from_yaml, QConfigSpec::from_json] {
        match read(text) {
            Err(error) => refusal::check(&error),
            Ok(spec) => {
                let yaml = spec.to_yaml().expect("has no observers of a user's own");
                let json = spec.to_json().expect("has no observers of a user's own");
                let again = QConfigSpec::from_yaml(&yaml);
                assert_eq!(again.expect("what was written"), spec, "{yaml}");
                let again = QConfigSpec::from_json(&json);
                assert_eq!(again.expect("what was written"), spec, "{json}");
            }
        }
    }
}
