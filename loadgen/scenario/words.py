"""Common short English words that prompts are made of; nearly each is one token of the usual BPE vocabularies."""

_TEXT = """
able about above across act action active add after again age agree air all allow along already also always
among amount animal answer any appear apple area arm army around arrive art ask away baby back bad bag ball
band bank bar base basic bear beat beautiful because become bed before begin behind believe below best better
between big bill bird bit black block blood blow blue board boat body bone book born both bottom box boy
branch bread break bring broad brother brown build burn business busy but buy call came can capital captain
car card care carry case cat catch cause cell cent center century certain chair chance change character charge
chart check chief child choose church circle city claim class clean clear climb clock close clothes cloud
coast coat cold color column come common company compare complete condition consider contain control cook cool
copy corn corner correct cost cotton could count country course cover create crop cross crowd cry current cut
dance danger dark day dead deal dear death decide deep degree depend describe desert design develop differ
difficult direct discuss distant divide doctor does dog dollar done door double down draw dream dress drink
drive drop dry during each early earth ease east easy eat edge effect egg eight either electric element else
end enemy energy engine enough enter equal even evening event ever every exact example except excite exercise
expect experience experiment eye face fact fair fall family famous far farm fast father favor fear feed feel
feet few field fig fight figure fill final find fine finger finish fire first fish fit five flat floor flow
flower fly follow food foot for force forest form forward four free fresh friend from front fruit full fun
game garden gas gather gave general gentle get girl give glad glass gold gone good got govern grand grass gray
great green ground group grow guess guide gun hair half hand happen happy hard has hat have head hear heart
heat heavy held help her here high hill him his history hit hold hole home hope horse hot hour house how huge
human hundred hunt hurry ice idea imagine inch include indicate industry insect instant instrument interest
invent iron island job join joy jump just keep kept key kill kind king knew know lady lake land language large
last late laugh law lay lead learn least leave led left leg length less let letter level lie life lift light
like line liquid list listen little live locate log lone long look lost lot loud love low machine made magnet
main major make man many map mark market mass master match material matter may mean measure meat meet melody
men metal method middle might mile milk million mind mine minute miss mix modern molecule moment money month
moon more morning most mother motion mount mountain mouth move much multiply music must name nation natural
nature near necessary neck need neighbor never new next night nine noise noon nor north nose note nothing
notice noun now number object observe occur ocean off offer office often oil old once one only open operate
opposite order organ original other our out over own oxygen
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
