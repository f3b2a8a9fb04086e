//! Whole kinds of layers.

use super::trials::{Trials, start};
use crate::tune::stop::Step;
use crate::tune::units::{LayerPrecision, Units};

/// All int8; if that fails, float, to which kinds are added, the largest first, each in the first
/// precision with which the criterion holds.
pub(super) fn run(units: &Units, trials: &mut dyn Trials) -> Step {
    if start(units, trials)?.is_none() {
        return Ok(());
    }
    let precisions = [units.starts(), units.fallbacks()].concat();
    let mut kept = units.uniform(LayerPrecision::Float);
    let mut any = false;
    for (_, of_kind) in units.kinds() {
        for &precision in precisions.iter().filter(|p| **p != LayerPrecision::Float) {
            let added = units.with(&kept, &of_kind, precision);
            if trials.probe(&added)?.passed {
                (kept, any) = (added, true);
                break;
            }
        }
    }
    if !any {
        trials.trial(&kept)?;
    }
    Ok(())
}
