//! Neural Compressor's order of trials.

use super::trials::{Trials, start};
use crate::tune::stop::Step;
use crate::tune::units::Units;

/// All int8; then for each higher precision every layer alone, from output to input; then the
/// layers that did best alone, accumulated.
pub(super) fn run(units: &Units, trials: &mut dyn Trials) -> Step {
    let Some(base) = start(units, trials)? else {
        return Ok(());
    };
    for precision in units.fallbacks() {
        let mut alone = Vec::new();
        for unit in (0..units.len()).rev() {
            let verdict = trials.trial(&units.with(&base, &[unit], precision))?;
            alone.push((unit, verdict));
        }
        // More layers cost more.
        if alone.iter().any(|(_, verdict)| verdict.passed) {
            return Ok(());
        }
        alone.sort_by(|(_, a), (_, b)| trials.compare(b.value, a.value));
        let mut fallen = base.clone();
        for (number, (unit, _)) in alone.into_iter().enumerate() {
            fallen = units.with(&fallen, &[unit], precision);
            // The first was tried alone.
            if number > 0 && trials.trial(&fallen)?.passed {
                return Ok(());
            }
        }
    }
    Ok(())
}
