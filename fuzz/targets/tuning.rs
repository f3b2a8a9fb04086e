//! A text as a tuning configuration: it is read, or refused with a short message that has its
//! place.

use candle_dynquant::TuningConfig;

use crate::refusal;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match TuningConfig::from_yaml(text) {
        Err(error) => refusal::check(&error),
        Ok(config) => {
            for key in config.ignored() {
                assert!(key.chars().count() < 1_500, "{key}");
            }
            let again = TuningConfig::from_yaml(text).expect("what was read before");
            assert_eq!(format!("{again:?}"), format!("{config:?}"));
        }
    }
}
