//! Functions of vectors and logits.

/// The vector scaled to length 1; zeros stay.
///
/// ```
/// assert_eq!(dynquant_embed::normalized(vec![3., 4.]), [0.6, 0.8]);
/// ```
pub fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let sum: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    if sum > 0. {
        let factor = 1. / sum.sqrt();
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
    vector
}

/// The probability of a logit.
///
/// ```
/// assert_eq!(dynquant_embed::sigmoid(0.), 0.5);
/// ```
pub fn sigmoid(x: f32) -> f32 {
    1. / (1. + (-x).exp())
}

/// The probabilities of the logits of exclusive classes: their sum is 1.
///
/// ```
/// assert_eq!(dynquant_embed::softmax(&[2., 2.]), [0.5, 0.5]);
/// ```
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}
