//! Puts `src/compares.c` between the comparisons and the fuzzer, to which each one would be reported.

fn main() {
    // The random lives are a test of the module's, and so is the simulated server that they run on.
    println!("cargo::rustc-cfg=test");
    println!("cargo::rerun-if-changed=src/compares.c");
    cc::Build::new().file("src/compares.c").compile("compares");
    let sizes = ["1", "2", "4", "8"];
    let compared = ["cmp", "const_cmp"].iter().flat_map(|kind| sizes.map(|size| format!("{kind}{size}")));
    for what in compared.chain(["switch".to_owned()]) {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=__sanitizer_cov_trace_{what}");
    }
}
