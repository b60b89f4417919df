package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Script is a test of a whole cell, told in a few readable lines: what happens
// to whom, and what must come of it. docs/simulator.md has the language.
type Script struct {
	steps    []step
	settings []setting
	replicas int
	clients  int
}

// step is one command: where it stands, as it was written, and what it does.
type step struct {
	line int
	text string
	do   func(d *director)
}

// setting changes the plan before the cell is founded.
type setting func(p *plan)

// ScriptError is a mistake in a script. Line and Word count from 1; Word is 0 if
// it concerns the whole script.
type ScriptError struct {
	Line, Word int
	Found      string // the word
	Text       string
}

func (e *ScriptError) Error() string {
	switch {
	case e.Word == 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Text)
	case e.Found == "":
		return fmt.Sprintf("line %d, behind its last word (word %d): %s", e.Line, e.Word-1, e.Text)
	}
	return fmt.Sprintf("line %d, word %d (%q): %s", e.Line, e.Word, e.Found, e.Text)
}

// scriptParser reads one command after the other. The first mistake ends it.
type scriptParser struct {
	script *Script
	names  map[string]bool // given by let
	line   int
	words  []string // of the line, ";" as a word
	next   int      // index of the next one
	err    *ScriptError
}

// ParseScript reads a script. Commands are divided by lines or ";", and what
// follows # is not read. The error is a *ScriptError.
func ParseScript(text string) (*Script, error) {
	p := &scriptParser{script: &Script{clients: 1}, names: map[string]bool{}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		p.line, p.next = i+1, 0
		p.words = strings.Fields(strings.ReplaceAll(line, ";", " ; "))
		for p.err == nil && p.next < len(p.words) {
			if p.words[p.next] == ";" {
				p.next++
				continue
			}
			from := p.next
			do := p.command()
			if p.err == nil && !p.ends() {
				p.fail("nothing more is expected here")
			}
			if p.err == nil && do != nil {
				p.script.steps = append(p.script.steps, step{line: p.line, text: strings.Join(p.words[from:p.next], " "), do: do})
			}
		}
		if p.err != nil {
			return nil, p.err
		}
	}
	if p.script.replicas == 0 {
		return nil, &ScriptError{Line: p.line, Text: "the script founds no cell: it wants a line like \"start 3\""}
	}
	return p.script, nil
}

// fail takes down a mistake at the next word.
func (p *scriptParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = &ScriptError{Line: p.line, Word: p.number(), Text: fmt.Sprintf(format, args...)}
		if p.next < len(p.words) {
			p.err.Found = p.words[p.next]
		}
	}
}

// number is the next word's number in its line; dividers are none.
func (p *scriptParser) number() int {
	n := 1
	for _, w := range p.words[:p.next] {
		if w != ";" {
			n++
		}
	}
	return n
}

func (p *scriptParser) ends() bool { return p.next >= len(p.words) || p.words[p.next] == ";" }

// peek gives the next word of the command, "" at its end.
func (p *scriptParser) peek() string {
	if p.ends() {
		return ""
	}
	return p.words[p.next]
}

// take takes the next word if it is this one.
func (p *scriptParser) take(word string) bool {
	if p.peek() == word {
		p.next++
		return true
	}
	return false
}

// want demands a word.
func (p *scriptParser) want(word string) {
	if p.err == nil && !p.take(word) {
		p.fail("%q is expected here", word)
	}
}

// word takes any word.
func (p *scriptParser) word(what string) string {
	if p.err != nil {
		return ""
	}
	if p.ends() {
		p.fail("%s is missing", what)
		return ""
	}
	p.next++
	return p.words[p.next-1]
}

// among takes one of several words and gives its index.
func (p *scriptParser) among(what string, words ...string) int {
	for i, w := range words {
		if p.err == nil && p.take(w) {
			return i
		}
	}
	if p.ends() {
		p.fail("%s is missing: one of %s", what, strings.Join(words, ", "))
	} else {
		p.fail("no such %s: it is one of %s", what, strings.Join(words, ", "))
	}
	return 0
}

// duration takes a time like 300ms or 5s.
func (p *scriptParser) duration() int64 {
	at := p.next
	text := p.word("a time like 300ms or 5s")
	if p.err != nil {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > time.Hour {
		p.next = at
		p.fail("a time like 300ms or 5s is expected here, an hour at most")
	}
	return int64(d)
}

// within takes an optional bound: "within 5s".
func (p *scriptParser) within(unless int64) int64 {
	if p.take("within") {
		return p.duration()
	}
	return unless
}

func (p *scriptParser) count(what string, lo, hi int) int {
	at := p.next
	text := p.word(what)
	if p.err != nil {
		return lo
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lo || n > hi {
		p.next = at
		p.fail("%s is expected here, %d to %d", what, lo, hi)
		return lo
	}
	return n
}

// key takes the name of a value or a lock.
func (p *scriptParser) key(what string) string {
	at := p.next
	key := p.word(what)
	if p.err == nil && (!plainName(key) || reserved[key] || clientNumber(key) > 0 || p.names[key]) {
		p.next = at
		p.fail("%s is expected here: letters and digits that begin with a letter, and no word of the language", what)
	}
	return key
}

func plainName(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

var reserved = map[string]bool{"master": true, "follower": true, "followers": true, "all": true, "rest": true, "no": true,
	"progress": true, "equal": true, "missing": true, "clients": true}

// clientNumber gives n for "cn", 0 for anything else.
func clientNumber(word string) int {
	rest, ok := strings.CutPrefix(word, "c")
	n, err := strconv.Atoi(rest)
	if !ok || err != nil || n < 1 || n > 9 || len(rest) != 1 {
		return 0
	}
	return n
}

// client takes "cn" if it stands here, else it is c1.
func (p *scriptParser) client() int {
	if n := clientNumber(p.peek()); n > 0 {
		p.next++
		p.script.clients = max(p.script.clients, n)
		return n
	}
	return 1
}

// who names machines; which they are may be known only when the script runs.
type who struct {
	word    string
	replica int // -1: not by number
	client  int // 0: no client
}

// machine takes one machine, or a word for several.
func (p *scriptParser) whos(word string, clients bool) ([]who, bool) {
	var out []who
	for _, part := range strings.Split(word, ",") {
		w := who{word: part, replica: -1}
		n, err := strconv.Atoi(part)
		switch {
		case err == nil && n >= 0 && n < p.script.replicas:
			w.replica = n
		case clients && clientNumber(part) > 0:
			w.client = clientNumber(part)
			p.script.clients = max(p.script.clients, w.client)
		case part == "master", part == "follower", part == "followers", part == "all", p.names[part]:
		default:
			return nil, false
		}
		out = append(out, w)
	}
	return out, true
}

// replicas takes a list of replicas.
func (p *scriptParser) replicas() []who { return p.list(false) }

// machines takes a list of replicas and clients.
func (p *scriptParser) machines() []who { return p.list(true) }

func (p *scriptParser) list(clients bool) []who {
	at := p.next
	what := "a replica (0 to %d, master, follower, followers, all, or a name given by let; several with commas between)"
	if clients {
		what = "a replica or a client (0 to %d, master, follower, followers, all, c1 to c9, or a name given by let; several with commas between)"
	}
	what = fmt.Sprintf(what, p.script.replicas-1)
	word := p.word(what)
	if p.err != nil {
		return nil
	}
	list, ok := p.whos(word, clients)
	if !ok {
		p.next = at
		p.fail("%s is expected here", what)
	}
	return list
}
