package replog
