//! The chapters of the guide in `docs`, and the README: their Rust blocks are compiled and run with
//! the doctests.

macro_rules! chapters {
    ($($name:ident $file:literal)*) => {
        $(
            #[doc = include_str!(concat!("../docs/", $file))]
            mod $name {}
        )*
    };
}

chapters! {
    readme "../README.md"
    introduction "introduction.md"
    first_hour "first-hour.md"
    porting "porting.md"
    coming_from "coming-from.md"
    support "support.md"
    numerics "numerics.md"
    presets "presets.md"
    embedding "embedding.md"
    accuracy "accuracy.md"
    decoders "decoders.md"
    performance "performance.md"
    checkpoints "checkpoints.md"
    inspecting "inspecting.md"
    tuning "tuning.md"
    own_project "own-project.md"
    extending "extending.md"
    deploying "deploying.md"
    troubleshooting "troubleshooting.md"
}
