"""The core with all its mutants in it at once: each function has a body for every mutant, and a switch that chooses
one.

So one build serves thousands of mutants. The rest is built separately: constants, functions that constants need, and
those that return a type without a name in more than one way.
"""

import re
from collections import defaultdict

from .listing import Text

# A file added to the core: the mutant that lives, and, if that is asked, the functions that are reached.
CHOICE = """
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
const UNREAD: usize = usize::MAX;
const WATCHED: usize = usize::MAX - 1;
static LIVING: AtomicUsize = AtomicUsize::new(UNREAD);
static REACHED: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];
#[inline]
pub(crate) fn living(function: usize) -> usize {
    let living = LIVING.load(Relaxed);
    if living < WATCHED { living } else { watch(function, living) }
}
#[cold]
fn watch(function: usize, living: usize) -> usize {
    if living == UNREAD {
        let watched = std::env::var_os("MUTANT_REACHED").is_some();
        let wanted = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
        LIVING.store(if watched { WATCHED } else { wanted }, Relaxed);
        return self::living(function);
    }
    if !REACHED[function].swap(true, Relaxed) {
        let path = std::env::var_os("MUTANT_REACHED").unwrap();
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(format!("{function}\\n").as_bytes()).unwrap();
    }
    0
}
"""


class Schemata:
    """Files of the core with mutants in their functions."""

    def __init__(self, sources, mutants, kept_const=(), left_out=()):
        self.numbers = {mutant.name: number for number, mutant in enumerate(mutants, 1)}
        self.functions, self.numbers_of = {}, {}
        self.places, self.whole = {}, {}
        self.kept_const = kept_const
        self.alone = [mutant for mutant in mutants if mutant.function is None]
        by_file = defaultdict(list)
        for mutant in mutants:
            if mutant.function and mutant.name not in left_out:
                by_file[mutant.file].append(mutant)
        self.sources = {path: self.file(path, text, by_file[path]) for path, text in sources.items()}
        self.choice = CHOICE.replace("FUNCTIONS", str(max(len(self.functions), 1)))

    def file(self, path, text, mutants):
        """The file with all of these mutants; remembers in which lines each of them stands."""
        source, pieces, at, lines = Text(text), [], 0, 1
        for span, inside in sorted(outermost(mutants).items()):
            start, end = source.at(span[0]), source.at(span[1])
            brace = body_start(text, start)
            constant = re.search(r"\bconst fn (\w+)", text[start:brace])
            if constant and constant[1] in self.kept_const:
                self.alone += inside
                continue
            returned = re.search(r"->\s*impl\s+([^{]*?)\s*(?:where[^{]*)?$", text[start:brace])
            kind = re.sub(r"\+\s*use<[^>]*>", "", returned[1]) if returned else None
            lines += text[at:start].count("\n")
            head = self.without_const(text[at:start]) + self.without_const(text[start:brace])
            number = self.functions.setdefault((path, span), len(self.functions))
            self.numbers_of.update({(path, mutant.function): number for mutant in inside})
            arms = [f"{{ match crate::mutant::living({number}) {{\n"]
            lines += text[start:brace].count("\n")
            first = lines
            lines += arms[0].count("\n")
            for mutant in inside:
                body = source.mutated(mutant, brace, end)
                arm = f"{self.numbers[mutant.name]} => {boxed(body, kind)},\n"
                for line in range(lines, lines + arm.count("\n")):
                    self.places[path, line] = mutant
                lines += arm.count("\n")
                arms.append(arm)
            arms.append(f"_ => {boxed(text[brace:end], kind)},\n}}}}")
            last = lines + arms[-1].count("\n")
            nameless = re.search(r"->[^{]*\bimpl\b", text[start:brace])
            for line in range(first, last + 1):
                if nameless or (path, line) not in self.places:
                    self.whole[path, line] = inside
            lines = last
            pieces += [head, *arms]
            at = end
        return "".join([*pieces, self.without_const(text[at:])])

    def without_const(self, text):
        """No function asks for its mutant while it is compiled."""
        return re.sub(
            r"\bconst fn (\w+)", lambda found: found[0] if found[1] in self.kept_const else f"fn {found[1]}", text
        )


def boxed(body, kind):
    """A body that gives this kind of value, if its type has no name."""
    return f"Box::new({body}) as Box<dyn {kind} + '_>" if kind and "'" not in kind else body


def outermost(mutants):
    """The mutants by their function; those of a function within another one belong to that."""
    spans = {mutant.function for mutant in mutants}
    found = defaultdict(list)
    for mutant in mutants:
        around = [span for span in spans if span[0] <= mutant.function[0] and mutant.function[1] <= span[1]]
        found[min(around)].append(mutant)
    return found


def body_start(text, start):
    """The start of the body of the function whose attributes, or name, begin here."""
    head = re.compile(r"(?:\s*(?:///[^\n]*\n|//[^\n]*\n|#\[[^\n]*\]\n))*").match(text, start)
    return text.index("{", text.index("fn ", head.end()))
