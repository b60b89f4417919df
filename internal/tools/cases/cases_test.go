package main

import "testing"

func TestParse(t *testing.T) {
	lines, err := parse("# comment\n\na fault | ./store | TestA\nanother one|./sim|TestB/sub|planted\n")
	if err != nil || len(lines) != 2 || lines[0] != (line{"a fault", "./store", "TestA", false}) || lines[1] != (line{"another one", "./sim", "TestB/sub", true}) {
		t.Errorf("%v %v", lines, err)
	}
	for _, bad := range []string{"no package", "a | b | c | d", "a | b | c | planted | e"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := parse(list); err != nil {
		t.Error(err)
	}
}

func TestRead(t *testing.T) {
	const events = `{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"hello\n"}
{"Action":"pass","Test":"TestA"}
{"Action":"skip","Test":"TestB"}
{"Action":"pass"}
`
	if printed, passed := read([]byte(events), "TestA"); !passed || printed != "hello\n" {
		t.Errorf("%q %v", printed, passed)
	}
	for _, other := range []string{"TestB", "TestC", ""} {
		if _, passed := read([]byte(events), other); passed && other != "" {
			t.Errorf("%s has passed", other)
		}
	}
	if p := pattern("TestB/sub"); p != "^TestB$/^sub$" {
		t.Errorf("pattern %s", p)
	}
}
