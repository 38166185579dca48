//! Scripts, and the words that are found in them.

use proptest::prelude::*;

use super::*;

fn read_commands(script: &str, arguments: Option<&[String]>) -> Vec<ShellCommand> {
    commands(script, arguments, &mut ScriptGrowth::default())
}

#[test]
fn words_are_where_the_shell_sees_them() {
    for (script, expected) in [
        ("torchrun --a 'b c' \"d e\" f\\ g", "torchrun|--a|b c|d e|f g"),
        ("cd x && python a.py; echo b | tee c &", "cd|x / python|a.py / echo|b / tee|c"),
        ("python a.py >log 2>&1 </dev/null &>> all", "python|a.py"),
        ("A='x y'\n$A \"$A\" ${A} ${B:-z} $C", "A=x y / x|y|x y|x|y|z|\u{fffc}"),
        ("args=(--n 2 \"a b\")\nrun \"${args[@]}\"", "args=--n 2 a b / run|--n|2|a|b"),
        ("# no\necho a#b # no", "echo|a#b"),
        ("if [ -n \"$x\" ]; then\n  mpirun -n 2 \\\n  ./a\nfi", "[|-n|\u{fffc}|] / mpirun|-n|2|./a / fi"),
        ("cat <<'EOF' > x\ntorchrun no\nEOF\necho yes", "cat / echo|yes"),
        ("X=$(torchrun a) Y=`msrun b`", "torchrun|a / msrun|b / X=\u{fffc}|Y=\u{fffc}"),
        ("(cd a; b) || { c; }", "cd|a / b / c"),
        ("case $1 in a) torchrun x;; esac", "case|\u{fffc}|in|a / torchrun|x / esac"),
        ("echo $((1+1)) $[2*2] 'it''s'", "echo|\u{fffc}|\u{fffc}|its"),
        ("echo 'open", "echo|open"),
        ("echo \"open $(x", "x / echo|open \u{fffc}"),
    ] {
        let read: Vec<String> = read_commands(script, None).iter().map(|it| it.words.join("|")).collect();
        assert_eq!(read.join(" / "), expected, "{script}");
    }
}

#[test]
fn arguments_are_where_the_script_names_them() {
    let arguments = ["a b", "c", "\u{fffc}", "d"].map(str::to_owned);
    for (script, expected) in [
        ("x \"$@\" y", "x|a b|c|\u{fffc}|d|y"),
        ("x \"p$@q\"", "x|pa b|c|\u{fffc}|dq"),
        ("x $@ \"${@}\"", "x|a|b|c|\u{fffc}|d|a b|c|\u{fffc}|d"),
        ("x \"$*\"", "x|a b c \u{fffc} d"),
        ("x \"${@:2}\" ${@:9} ${@:n}", "x|c|\u{fffc}|d|\u{fffc}"),
        ("x $1 \"$1\" ${2} ${2:?give it} $4 ${1%b}", "x|a|b|a b|c|c|\u{fffc}|\u{fffc}"),
        ("A=$2\nshift\nx $1 \"$A\"; shift 9; x \"$@\"", "A=c / shift / x|c|c / shift|9 / x|\u{fffc}"),
        ("if [ $2 ]; then shift; fi; x $1", "[|c|] / shift / fi / x|\u{fffc}"),
        ("[ $2 ] && shift; x $1", "[|c|] / shift / x|\u{fffc}"),
        ("set -eu -o pipefail; x $2; set -- e; x $2", "set|-eu|-o|pipefail / x|c / set|--|e / x|\u{fffc}"),
        ("f() {\n  x \"$@\"\n}\nx $2", "f / x|\u{fffc} / x|c"),
        ("function f {\n x \"$@\"; }\nx $2", "function|f|{ / x|\u{fffc} / x|c"),
        ("function f() { x $1; }; x $2", "function|f / x|\u{fffc} / x|c"),
        ("A=(\"$@\")\nx $(y $2)", "A=a b c \u{fffc} d / y|c / x|\u{fffc}"),
    ] {
        let read = read_commands(script, Some(&arguments));
        let read: Vec<String> = read.iter().map(|it| it.words.join("|")).collect();
        assert_eq!(read.join(" / "), expected, "{script}");
    }
    let words = |script: &str, arguments: &[String]| -> Vec<Vec<String>> {
        read_commands(script, Some(arguments)).into_iter().map(|it| it.words).collect()
    };
    let without = words("x \"$@\" $@ $1 '' \"$1\" ${1:-y} \"\"\"$@\"", &[]);
    assert_eq!(without, [["x", "", "", "y", ""]]);
    let many = vec!["a".repeat(1000); 100];
    let bytes: usize = words(&"x \"$@\"\n".repeat(100), &many).iter().flatten().map(String::len).sum();
    assert!(bytes < 4 * MAX_GROWTH, "{bytes}");
}

#[test]
fn what_stands_behind_a_condition_may_be_skipped() {
    for (script, expected) in [
        ("x", false),
        ("cd a && pip install b && x", false),
        ("a; x | tee b", false),
        ("if a; then b; fi; x", false),
        ("[ a ] && b; x", false),
        ("f() { a; }; x", false),
        ("(cd a && x)", false),
        ("if a; then x; fi", true),
        ("if a\nthen\n  b\nelse\n  x\nfi", true),
        ("for i in 1 2; do x; done", true),
        ("case a in b) x;; esac", true),
        ("[ a ] && x", true),
        ("[[ a ]] && cd b && x | tee c", true),
        ("[ a ] &&\n x", true),
        ("! a && x", true),
        ("a || x", true),
        ("a || { b; x; }", true),
        ("f() { x; }; a", true),
        ("[ a ] || exit 0; x", true),
        ("if a; then exec b; fi\nx", true),
        ("[ a ] && b=$(x)", true),
    ] {
        let read = read_commands(script, None);
        let found = read.iter().find(|it| it.words == ["x"]).map(|it| it.may_be_skipped);
        assert_eq!(found, Some(expected), "{script}");
    }
}

#[test]
fn a_program_that_is_looked_for_is_known() {
    let read = read_commands("python $(which torchrun) x; $(command -v msrun); $(which $A) b", None);
    let read: Vec<String> = read.iter().map(|it| it.words.join("|")).collect();
    assert_eq!(read, ["python|torchrun|x", "msrun", "which|\u{fffc}", "\u{fffc}|b"]);
}

#[test]
fn files_that_are_made_anew_are_seen() {
    for (script, expected) in [
        ("python a.py > log", true),
        ("python a.py >| log", true),
        ("python a.py &> log", true),
        ("X=$(python a.py 2>errors)", true),
        ("python a.py >> log 2>&1", false),
        ("python a.py > /dev/null 2>/dev/null < input", false),
        ("echo 'a > b' \"c > d\"", false),
    ] {
        assert_eq!(
            script_commands(script, None, &mut ScriptGrowth::default()).writes_file,
            expected,
            "{script}"
        );
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

proptest! {
    #[test]
    fn any_text_has_words(script in any::<String>(), dense in "[a-b$(){}\\[\\]'\"`<>&|;#=\\\\ \n-]{0,200}") {
        for text in [script, dense] {
            let arguments = ["a".to_owned(), text.clone()];
            for arguments in [None, Some(&arguments[..])] {
                prop_assert!(read_commands(&text, arguments).iter().all(|it| !it.words.is_empty()));
            }
        }
    }

    #[test]
    fn quoted_words_are_read_back(words in proptest::collection::vec("[^\0]{0,12}", 1..6)) {
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        prop_assert_eq!(read_commands(&line.join(" "), Some(&[])), vec![ShellCommand { words, may_be_skipped: false }]);
    }
}

#[test]
fn variables_that_contain_each_other_stay_small() {
    let script = "A=xxxxxxxxxxxxxxxx\n".to_owned() + &"A=\"$A$A\"\n".repeat(100);
    let bytes: usize = read_commands(&script, None).iter().flat_map(|it| &it.words).map(String::len).sum();
    assert!(bytes < 4 * MAX_GROWTH, "{bytes}");
}
