//! What a field of a trace is made of: columns and numbers with `-`, `*` and `/` between them, from the left to the right.

use csv::StringRecord;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operand {
    Column(usize),
    Number(f64),
}

/// A formula whose columns are found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Formula {
    first: Operand,
    rest: Vec<(char, Operand)>,
}

const OPERATORS: [char; 3] = ['-', '*', '/'];

impl Formula {
    /// Reads one; what is neither a column nor a number is the error. The whole text may be the name of a column.
    pub fn parse(text: &str, names: &StringRecord) -> Result<Self, String> {
        let operand = |part: &str| {
            let part = part.trim();
            let column = names.iter().position(|name| name == part).map(Operand::Column);
            column.or_else(|| part.parse().ok().map(Operand::Number)).ok_or_else(|| part.to_owned())
        };
        if let Ok(first) = operand(text) {
            return Ok(Self { first, rest: Vec::new() });
        }
        let mut rest = Vec::new();
        let (first, mut left) = split(text);
        while let Some((operator, behind)) = left {
            let (part, further) = split(behind);
            rest.push((operator, operand(part)?));
            left = further;
        }
        Ok(Self { first: operand(first)?, rest })
    }

    /// Its value; none, if a cell that it needs is empty. The error is the cell's.
    pub fn value<E>(&self, cell: impl Fn(usize) -> Result<Option<f64>, E>) -> Result<Option<f64>, E> {
        let of = |operand: Operand| match operand {
            Operand::Column(column) => cell(column),
            Operand::Number(number) => Ok(Some(number)),
        };
        let Some(mut value) = of(self.first)? else { return Ok(None) };
        for (operator, operand) in &self.rest {
            let Some(operand) = of(*operand)? else { return Ok(None) };
            value = match operator {
                '-' => value - operand,
                '*' => value * operand,
                _ => value / operand,
            };
        }
        Ok(Some(value))
    }

    /// The column that it is, for a field that is text.
    pub fn column(&self) -> Option<usize> {
        match (self.first, &self.rest[..]) {
            (Operand::Column(column), []) => Some(column),
            _ => None,
        }
    }
}

/// What stands before the first operator, and that operator with what stands behind it.
fn split(text: &str) -> (&str, Option<(char, &str)>) {
    match text.find(OPERATORS) {
        Some(at) => (&text[..at], text[at..].chars().next().map(|operator| (operator, &text[at + 1..]))),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Option<f64>, String> {
        let names = StringRecord::from(vec!["a", "b", "a-b", "none"]);
        let cells = [Some(6.0), Some(4.0), Some(7.0), None];
        Ok(Formula::parse(text, &names)?.value::<()>(|column| Ok(cells[column])).expect("cells"))
    }

    #[test]
    fn columns_and_numbers_are_taken_from_the_left_to_the_right() {
        assert_eq!(value("a"), Ok(Some(6.0)));
        assert_eq!(value("a - b * 100"), Ok(Some(200.0)));
        assert_eq!(value("a/b/3"), Ok(Some(0.5)));
        assert_eq!(value("a-b"), Ok(Some(7.0)), "a column may be called so");
        assert_eq!(value("1.5"), Ok(Some(1.5)));
        assert_eq!(value("a-none"), Ok(None));
        assert_eq!(value("a-c"), Err("c".into()));
        assert_eq!(value("a-"), Err(String::new()));
    }
}
